"""A grid of runs: its numbers, its resumption, its processes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import polyclinic
import polyclinic.runs.grid as module
from grid_support import Heard, grid_run, recipe_with, stand_in  # noqa: F401 (a fixture)
from polyclinic.api import compare_grid
from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.files import load_recipe
from polyclinic.report.tables import Comparison
from polyclinic.runs.grid_plan import plan_grid

METHODS = ["fedavg", "fedbn", "fedavg+proximal(mu=0.5)"]
FAST = ["training.rounds=1", "training.local_epochs=1"]


@pytest.fixture(scope="module")
def grid(tiny_recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    out = tmp_path_factory.mktemp("grid") / "grid"
    return out, polyclinic.compare(tiny_recipe_file, METHODS, out=out, seeds=2, overrides=FAST, jobs=1)


def summaries(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    plan = json.loads((out / "grid.json").read_text())
    return {
        (entry["method"], entry["seed"]): json.loads((out / entry["folder"] / "summary.json").read_text())
        for entry in plan["runs"]
    }


def test_every_method_and_seed_has_a_run_of_its_own(grid: tuple[Path, Comparison]) -> None:
    found = summaries(grid[0])
    assert set(found) == {(method, seed) for method in METHODS for seed in (0, 1)}
    assert all((summary["method"], summary["seed"]) == key for key, summary in found.items())


def test_the_table_holds_means_deviations_and_differences(grid: tuple[Path, Comparison]) -> None:
    out, table = grid
    found = summaries(out)
    with (out / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    rows = {(row["method"], row["column"]): row for row in lines if row["metric"] == "dice"}
    assert set(rows) == {(method, column) for method in METHODS for column in ("north", "south", "average")}
    means = {}
    for method in METHODS:
        for column in ("north", "south", "average"):
            runs = [found[method, seed] for seed in (0, 1)]
            values = [(run["average"] if column == "average" else run["sites"][column])["dice"] for run in runs]
            means[method, column] = mean(values)
            row = rows[method, column]
            assert float(row["mean"]) == pytest.approx(mean(values))
            assert float(row["standard_deviation"]) == pytest.approx(stdev(values))
            assert (row["metric"], row["seeds"]) == ("dice", "2")
            if method == METHODS[0]:
                assert row["difference"] == ""
            else:
                assert float(row["difference"]) == pytest.approx(mean(values) - means[METHODS[0], column])
    lines = (out / "table.md").read_text().splitlines()
    assert lines[0] == "| method | north | south | average | vs fedavg | p |"
    values = [found["fedbn", seed]["average"]["dice"] for seed in (0, 1)]
    difference = mean(values) - means["fedavg", "average"]
    assert lines[3].startswith("| fedbn |")
    shown = f"| {100 * mean(values):.2f} ± {100 * stdev(values):.2f} | {100 * difference:+.2f} |"
    assert shown in lines[3].replace("**", "")  # the best of a column is bold
    assert table.metric == "dice"


def test_an_interrupted_grid_repeats_only_what_is_missing(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = grid
    before = summaries(out)
    (out / "fedbn-seed1" / "summary.json").unlink()
    (out / "fedbn-seed1" / "checkpoints" / "all" / "server.safetensors").unlink()
    trained: list[Path] = []
    real = module.run_in_this_process

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        trained.append(out)
        return real(recipe, out=out, **more)

    monkeypatch.setattr(module, "run_in_this_process", spy)
    again = polyclinic.compare(tiny_recipe_file, METHODS, out=out, seeds=2, overrides=FAST)
    assert [path.name for path in trained] == ["fedbn-seed1"]
    assert again == table
    after = summaries(out)
    assert {key: one["seconds"] for key, one in after.items() if key != ("fedbn", 1)} == {
        key: one["seconds"] for key, one in before.items() if key != ("fedbn", 1)
    }


def test_a_grid_can_grow_and_shows_another_metric_without_new_runs(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = grid
    monkeypatch.setattr("polyclinic.runs.local_execution.LocalExecution.run", lambda _: pytest.fail("trained again"))
    table = polyclinic.compare(tiny_recipe_file, METHODS[:2], out=out, seeds=[1], overrides=FAST, metric="hd95")
    assert table.methods == ("fedavg", "fedbn")
    assert table.mean("fedbn", "north") == summaries(out)["fedbn", 1]["sites"]["north"]["hd95"]
    assert table.deviation("fedbn", "north") is None


def test_side_by_side_by_default_gives_the_same_numbers(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, two for four runs."""
    out, table = grid
    monkeypatch.setattr(module, "available_cores", lambda: 2)
    heard = Heard()
    plan = plan_grid(load_recipe(tiny_recipe_file, FAST), tuple(METHODS[:2]), (0, 1), tmp_path / "grid")
    compared = compare_grid(plan, observer=heard)
    for method in METHODS[:2]:
        assert compared.values[method] == table.values[method]
        for seed in (0, 1):
            name = f"{method}-seed{seed}"
            assert (plan.out / name / "cases.csv").read_text() == (out / name / "cases.csv").read_text()
            assert "round 1/1" in (plan.out / name / "output.log").read_text()
    assert heard.lines[0] == "plan 4 by 2"
    assert (heard.most, sum(line.startswith("finished") for line in heard.lines)) == (2, 4)


@pytest.mark.usefixtures("stand_in")
def test_a_failed_run_is_named_after_the_others_are_done_and_their_table_is_written(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again, only what failed runs."""
    monkeypatch.setattr("polyclinic.runs.grid.parse_method", lambda _: None)
    monkeypatch.setattr("polyclinic.runs.grid.known_here_only", lambda *_: None)
    out, recipe = tmp_path / "grid", load_recipe(tiny_recipe_file, FAST)
    shutil.copytree(grid[0] / "fedavg-seed0", out / "fedavg-seed0")
    plan = plan_grid(recipe, ("fedavg", "refuses", "dies"), (0,), out)
    for _ in range(2):
        heard = Heard()
        with pytest.raises(PolyclinicError) as caught:
            compare_grid(plan, jobs=2, observer=heard)
        head, *failed = str(caught.value).splitlines()
        assert head.startswith("2 of 3 runs failed; all others are done and in the tables;")
        assert (
            failed[0] == f"  refuses seed 0: images: no such folder; give another; see {out}/refuses-seed0/output.log."
        )
        assert "dies seed 0: its process was ended by SIGKILL" in failed[1]
        assert heard.lines[0] == "plan 2 by 2"
        text = (out / "table.md").read_text()
        assert "Not finished: refuses seed 0, dies seed 0." in text
        assert f"{100 * (grid[1].values['fedavg']['average'][0] or 0):.2f}" in text


def test_in_this_process_too_a_failed_run_stops_no_other(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(recipe: Any, *, out: Path, **_: Any) -> None:
        if recipe.method == "fedbn":
            raise ValueError("a bug\nand more of it")
        out.mkdir(parents=True)

    monkeypatch.setattr(module, "run_in_this_process", fake)
    plan = plan_grid(load_recipe(tiny_recipe_file), ("fedbn", "fedavg"), (0,), tmp_path)
    heard = Heard()
    with pytest.raises(PolyclinicError, match=r"1 of 2 runs failed; .*\n  fedbn seed 0: ValueError: a bug; see"):
        module.run_grid(plan, jobs=1, observer=heard)
    assert heard.lines == [
        "plan 2 by 1", "started fedbn seed 0", "failed fedbn seed 0", "started fedavg seed 0", "finished fedavg seed 0",
    ]  # fmt: skip
    assert "Traceback" in (tmp_path / "fedbn-seed0" / "output.log").read_text()


@pytest.mark.parametrize(
    ("jobs", "cores", "count", "expected"),
    [(None, 2, 6, 2), (None, 8, 3, 3), (None, 1, 6, 1), (None, 8, 1, 1), (5, 2, 6, 5), (5, 2, 1, 1), (1, 8, 6, 1)],
)
def test_how_many_go_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int | None, cores: int, count: int, expected: int
) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: cores)
    monkeypatch.setattr(module, "free_memory", lambda: 10**12)
    runs = [grid_run(tmp_path, "fedavg", seed) for seed in range(count)]
    assert module._decide(runs, jobs, Heard())[1] == expected


def test_a_run_that_has_processes_for_all_of_its_sites_goes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: 8)
    recipe = recipe_with(engine={"name": "flower"})
    runs = [grid_run(tmp_path, "fedavg", seed, recipe) for seed in range(3)]
    assert module._decide(runs, None, Heard())[1] == 1


def test_no_jobs_are_no_answer(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="jobs = 0: expected the number of runs side by side, at least 1"):
        list(module.carry_out([grid_run(tmp_path)], 0))


def test_a_grid_with_other_settings_is_not_mixed_in(grid: tuple[Path, Comparison], tiny_recipe_file: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"differs from the recipe to resume in training\.lr"):
        polyclinic.compare(tiny_recipe_file, METHODS, out=grid[0], seeds=2, overrides=[*FAST, "training.lr=0.5"])


def test_a_wrong_method_or_metric_stops_before_anything_runs(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="'fedavgg' is not a method, did you mean 'fedavg'"):
        polyclinic.compare(tiny_recipe_file, ["fedbn", "fedavgg"], out=tmp_path / "grid")
    with pytest.raises(PolyclinicError, match=r"--metric hd: not measured; evaluation\.metrics holds dice, iou"):
        polyclinic.compare(tiny_recipe_file, ["fedbn"], out=tmp_path / "grid", metric="hd")
    assert not (tmp_path / "grid").exists()
