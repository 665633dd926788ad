from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.report.page.results import read_results
from report_support import SITES, value_of, write_grid, write_run, write_study


def test_a_run_a_comparison_a_study_and_an_ablation_are_told_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "fedbn", seed=3)
    grid = write_grid(tmp_path / "grid")
    study = write_study(tmp_path / "study")
    ablation = write_grid(tmp_path / "ablation", ("pathfl", "fedavg"), seeds=(0,))
    rows = [{"method": "fedavg", "components": []}, {"method": "pathfl", "components": ["cse"]}]
    write_json(ablation / "ablation.json", {"method": "pathfl", "components": ["cse"], "rows": rows})
    found = {results.kind: results for results in map(read_results, (run, grid, study, ablation))}
    assert list(found) == ["run", "comparison", "study", "ablation"]
    assert [(g.methods, g.seeds) for g in found["run"].grids] == [(("fedbn",), (3,))]
    assert [g.title for g in found["study"].grids] == ["data.labelled = 5", "data.labelled = 10"]
    assert found["ablation"].grids[0].reference == "fedavg", "the row without any component, wherever it stands"
    assert found["comparison"].grids[0].reference == "fedavg"
    assert read_results(grid, "fedbn").grids[0].reference == "fedbn"


def test_a_comparison_in_the_folder_of_an_ablation_is_a_comparison(tmp_path: Path) -> None:
    rows = [{"method": "fedavg", "components": []}, {"method": "pathfl", "components": ["cse"]}]
    write_grid(tmp_path, ("fedbn", "fedavg"), seeds=(0,))
    write_json(tmp_path / "ablation.json", {"method": "pathfl", "components": ["cse"], "rows": rows})
    results = read_results(tmp_path)
    assert (results.kind, results.plan, results.grids[0].reference) == ("comparison", {}, "fedbn")


def test_a_comparison_has_the_means_of_its_cases_and_names_what_is_missing(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, missing=[("fedbn", 1)])).grids
    table = grid.comparison("dice")
    assert table.missing == ("fedbn seed 1",)
    by_hand = [sum(value_of(2, seed, 1, case) for case in range(4)) / 4 for seed in (0, 1)]
    assert table.values["fedprox"]["south"] == pytest.approx(by_hand)
    assert table.values["fedbn"]["average"][1] is None
    assert (grid.sites, grid.metrics) == (SITES, ("dice", "hd95"))


def test_methods_that_run_once_are_in_every_comparison_of_a_study(tmp_path: Path) -> None:
    folder = write_study(tmp_path, ("fedavg",))
    write_grid(folder / "all-labels", ("centralised",))
    plan = json.loads((folder / "study.json").read_text())
    assert read_results(folder).grids[1].title == "data.labelled = 10"
    for fixed in ("all-labels", {"5": "all-labels", "10": "all-labels"}):
        write_json(folder / "study.json", plan | {"fixed": fixed})
        assert [grid.methods for grid in read_results(folder).grids] == [("fedavg", "centralised")] * 2


def test_folders_that_hold_something_else_get_a_sentence(tmp_path: Path) -> None:
    def sentence(folder: Path, reference: str | None = None) -> str:
        with pytest.raises(PolyclinicError) as error:
            read_results(folder, reference).first.summary  # noqa: B018
        return str(error.value)

    assert "no such folder" in sentence(tmp_path / "none")
    assert "holds no run (recipe.toml, versions.json), no comparison" in sentence(tmp_path)
    (tmp_path / "recipe.toml").write_text("seed = 1")
    assert "holds no run" in sentence(tmp_path), "people keep recipes in folders of their own"
    grid = write_grid(tmp_path / "grid")
    assert "it has fedavg, fedbn, fedprox" in sentence(grid, "fedsgd")
    assert "one run, of fedavg" in sentence(grid / "m0-seed0", "fedbn")
    (grid / "m0-seed0" / "summary.json").write_text('{"method": 1}')
    assert "not the summary of a run" in sentence(grid)
    for damaged in ("[]", '{"methods": []}', '{"methods": ["a"], "runs": []}', "{"):
        (grid / "grid.json").write_text(damaged)
        assert "grid.json" in sentence(grid)
    (grid / "study.json").write_text('{"key": 1}')
    assert "not the plan of a study" in sentence(grid)


def test_names_of_folders_lead_nowhere_else(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", ("fedavg",), seeds=(0,))
    outside = write_run(tmp_path / "outside")
    plan = json.loads((grid / "grid.json").read_text())
    plan["runs"][0]["folder"] = f"../{outside.name}"
    write_json(grid / "grid.json", plan)
    assert read_results(grid).grids[0].runs[0].folder == grid / "outside"
