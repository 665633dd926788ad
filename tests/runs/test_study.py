"""A study: one comparison for every value of a key."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from PIL import Image

import polyclinic
import polyclinic.runs.grid as grid_module
from grid_support import Heard, stand_in  # noqa: F401 (a fixture)
from polyclinic.core.errors import PolyclinicError
from polyclinic.report.study import StudyTable, study_of
from polyclinic.runs.study import parse_vary, plan_study, run_study
from support import call

FAST = ["training.rounds=1", "training.local_epochs=1"]
METHODS = ["fl_lower", "fl_upper"]


@pytest.fixture(scope="module")
def study(tiny_recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyTable]:
    out = tmp_path_factory.mktemp("study") / "study"
    return out, polyclinic.study(
        tiny_recipe_file, "data.labelled=1,2", METHODS, out=out, seeds=2, overrides=FAST, jobs=1
    )


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_every_value_has_a_grid_and_all_labels_run_once(study: tuple[Path, StudyTable]) -> None:
    out, _ = study
    runs = sorted(str(path.parent.relative_to(out)) for path in out.glob("*/*/summary.json"))
    assert runs == [
        "all-labels/fl_upper-seed0", "all-labels/fl_upper-seed1",
        "data.labelled=1/fl_lower-seed0", "data.labelled=1/fl_lower-seed1",
        "data.labelled=2/fl_lower-seed0", "data.labelled=2/fl_lower-seed1",
    ]  # fmt: skip
    for value in (1, 2):
        lines = (out / f"data.labelled={value}" / "fl_lower-seed0" / "labelled.csv").read_text().splitlines()[1:]
        assert len(lines) == 2 * value, "the budget is per site, and there are two"


def test_draws_of_labels_vary_by_themselves_and_all_labels_run_once(tiny_recipe_file: Path, tmp_path: Path) -> None:
    plan = plan_study(tiny_recipe_file, ("data.labelled=1",), "data.label_seed=0,1,2", tuple(METHODS), (0,), tmp_path)
    assert [grid.recipe.data.label_seed for grid in plan.grids.values()] == [0, 1, 2]
    assert {grid.methods for grid in plan.grids.values()} == {("fl_lower",)}
    (fixed,) = {grid.out: grid for grid in plan.fixed.values()}.values()
    assert fixed.methods == ("fl_upper",)
    assert (fixed.recipe.data.labelled, fixed.recipe.data.label_seed) == (None, None)
    with pytest.raises(PolyclinicError, match="label_seed draws the images of labelled"):
        plan_study(tiny_recipe_file, (), "data.label_seed=0,1", tuple(METHODS), (0,), tmp_path)


def test_the_table_holds_the_runs_numbers(study: tuple[Path, StudyTable]) -> None:
    out, table = study
    with (out / "study.csv").open(newline="") as file:
        rows = {(row["data.labelled"], row["method"], row["column"]): row for row in csv.DictReader(file)}
    assert len(rows) == 2 * 2 * 3
    for value in ("1", "2"):
        for method, grid in (("fl_lower", f"data.labelled={value}"), ("fl_upper", "all-labels")):
            found = [summary(out / grid / f"{method}-seed{seed}")["average"]["dice"] for seed in (0, 1)]
            assert float(rows[value, method, "average"]["mean"]) == pytest.approx(mean(found))
            assert float(rows[value, method, "average"]["standard_deviation"]) == pytest.approx(stdev(found))
            assert f"{100 * mean(found):.2f} ± {100 * stdev(found):.2f}" in (out / "study.md").read_text()
            assert table.mean(method, value) == pytest.approx(mean(found))
    assert "fl_upper: does not depend on data.labelled, and ran once." in (out / "study.md").read_text()
    assert (out / "study.md").read_text().startswith("| method | data.labelled=1 | 2 |")


def test_the_picture_shows_lines(study: tuple[Path, StudyTable]) -> None:
    with Image.open(study[0] / "study.png") as picture:
        colours = picture.convert("RGB").getcolors(2**24)
    assert colours is not None
    blue, orange = (31, 119, 180), (255, 127, 14)
    counts = {colour: number for number, colour in colours}
    assert counts.get(blue, 0) > 50
    assert counts.get(orange, 0) > 50


def test_started_again_it_goes_on_where_it_stopped(
    study: tuple[Path, StudyTable], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = study
    (out / "data.labelled=2" / "fl_lower-seed1" / "summary.json").unlink()
    trained: list[str] = []
    real = grid_module.run_in_this_process

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        trained.append(f"{out.parent.name}/{out.name}")
        return real(recipe, out=out, **more)

    monkeypatch.setattr(grid_module, "run_in_this_process", spy)
    again = polyclinic.study(tiny_recipe_file, "data.labelled=1,2", METHODS, out=out, seeds=2, overrides=FAST)
    assert trained == ["data.labelled=2/fl_lower-seed1"]
    assert again == table == study_of(out, "dice")


def test_a_study_can_grow(
    study: tuple[Path, StudyTable], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more values, in another order; methods that do not depend on them are not trained again."""
    out, table = study
    trained: list[str] = []
    real = grid_module.run_in_this_process

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        trained.append(f"{out.parent.name}/{out.name}")
        return real(recipe, out=out, **more)

    monkeypatch.setattr(grid_module, "run_in_this_process", spy)
    more = polyclinic.study(
        tiny_recipe_file, "data.labelled=3,1,2", METHODS, out=out, seeds=2, overrides=(text for text in FAST), jobs=1
    )
    assert trained == ["data.labelled=3/fl_lower-seed0", "data.labelled=3/fl_lower-seed1"]
    assert more.mean("fl_lower", "2") == table.mean("fl_lower", "2")
    assert more.mean("fl_upper", "3") == table.mean("fl_upper", "1")


def test_only_the_budget_leaves_fl_upper_alone(tiny_recipe_file: Path, tmp_path: Path) -> None:
    plan = plan_study(tiny_recipe_file, (), "training.lr=0.1,0.01", ("fl_lower", "fl_upper"), (0,), tmp_path)
    assert plan.fixed == {}
    assert [grid.methods for grid in plan.grids.values()] == [("fl_lower", "fl_upper")] * 2
    assert [grid.recipe.training.lr for grid in plan.grids.values()] == [0.1, 0.01]


def test_a_study_of_fl_upper_alone_has_no_empty_grid(tiny_recipe_file: Path, tmp_path: Path) -> None:
    table = polyclinic.study(
        tiny_recipe_file, "data.labelled=1,2", ["fl_upper"], out=tmp_path / "s", seeds=1, overrides=FAST, jobs=1
    )
    assert table.mean("fl_upper", "1") == table.mean("fl_upper", "2") is not None


def test_a_recipe_that_waits_for_images_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolyclinicError, match="fgasl-cardiac needs images of yours"):
        polyclinic.study("fgasl-cardiac", "data.labelled=1,2", ["fl_lower"], out=tmp_path / "s")


def test_values_with_brackets_and_words() -> None:
    assert parse_vary("data.size=[32,32], [64,64]") == ("data.size", ("[32,32]", "[64,64]"))
    assert parse_vary("training.schedule=constant,cosine") == ("training.schedule", ("constant", "cosine"))


def test_another_study_is_not_overwritten(
    study: tuple[Path, StudyTable], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = study
    monkeypatch.setattr(grid_module, "run_in_this_process", lambda *_, **__: pytest.fail("trained"))
    before = (out / "study.md").read_text()
    done = call("study", tiny_recipe_file, "--vary", "training.lr=0.1,0.2", "--methods", "fedavg", "--out", out)
    assert done.code == 2
    assert f"{out}: holds a study of data.labelled; give another folder with --out." in done.err
    assert (out / "study.md").read_text() == before


def test_the_command_prints_what_it_writes(study: tuple[Path, StudyTable], tiny_recipe_file: Path) -> None:
    out, table = study
    settings = [word for text in FAST for word in ("--set", text)]
    done = call(
        "study", tiny_recipe_file, "--vary", "data.labelled=1,2", "--methods", ",".join(METHODS), "--seeds", "2",
        "--out", out, *settings,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "round" not in done.err, "nothing is trained again"
    number = table.mean("fl_lower", "2")
    assert number is not None
    assert f"{100 * number:.2f}" in done.out
    assert done.out.splitlines()[-1].endswith(f"picture: {out / 'study.png'}, .pdf and .svg")
    done = call(
        "study", tiny_recipe_file, "--vary", "data.labelled=1,2", "--methods", ",".join(METHODS), "--seeds", "2",
        "--out", out, *settings, "--json",
    )  # fmt: skip
    assert json.loads(done.out) == json.loads(json.dumps(table.to_json()))


def test_two_keys_have_a_grid_for_each_pair_and_go_on(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, vary = tmp_path / "study", ["training.lr=0.1,0.01", "data.labelled=1,2"]
    trained: list[str] = []
    real = grid_module.run_in_this_process

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        trained.append(f"{out.parent.name}/{out.name}")
        return real(recipe, out=out, **more)

    monkeypatch.setattr(grid_module, "run_in_this_process", spy)
    table = polyclinic.study(tiny_recipe_file, vary, METHODS, out=out, seeds=1, overrides=FAST, jobs=1)
    assert trained == [
        "all-labels-training.lr=0.1/fl_upper-seed0", "all-labels-training.lr=0.01/fl_upper-seed0",
        "training.lr=0.1-data.labelled=1/fl_lower-seed0", "training.lr=0.1-data.labelled=2/fl_lower-seed0",
        "training.lr=0.01-data.labelled=1/fl_lower-seed0", "training.lr=0.01-data.labelled=2/fl_lower-seed0",
    ]  # fmt: skip
    for lr in ("0.1", "0.01"):
        upper = summary(out / f"all-labels-training.lr={lr}" / "fl_upper-seed0")["average"]["dice"]
        for labels in ("1", "2"):
            lower = summary(out / f"training.lr={lr}-data.labelled={labels}" / "fl_lower-seed0")["average"]["dice"]
            assert table.mean("fl_lower", f"{lr}, {labels}") == lower
            assert table.mean("fl_upper", f"{lr}, {labels}") == upper
    trained.clear()
    (out / "training.lr=0.01-data.labelled=1" / "fl_lower-seed0" / "summary.json").unlink()
    plan = plan_study(tiny_recipe_file, tuple(FAST), vary, tuple(METHODS), (0,), out)
    assert len(list(run_study(plan, jobs=1))) == 6
    assert trained == ["training.lr=0.01-data.labelled=1/fl_lower-seed0"]
    assert study_of(out, "dice") == table
    with pytest.raises(PolyclinicError, match=r"holds a study of training\.lr, data\.labelled"):
        polyclinic.study(tiny_recipe_file, vary[0], METHODS, out=out, seeds=1, overrides=FAST, jobs=1)


def test_an_unknown_method_stops_at_once(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="'fedavgg' is not a method"):
        polyclinic.study(tiny_recipe_file, "data.labelled=1,2", ["fedavgg"], out=tmp_path / "s", seeds=1)


@pytest.mark.usefixtures("stand_in")
def test_all_values_share_the_machine_and_a_grid_is_given_when_it_is_whole(
    tiny_recipe_file: Path, tmp_path: Path
) -> None:
    """What serves every value comes first; runs of the next grid start before the last of this one has ended."""
    plan = plan_study(tiny_recipe_file, tuple(FAST), "data.labelled=1,2", ("fl_lower", "fl_upper"), (0,), tmp_path)
    heard = Heard()
    given = [grid.out.name for grid in run_study(plan, jobs=2, observer=heard)]
    assert sorted(given) == ["all-labels", "data.labelled=1", "data.labelled=2"]
    assert heard.lines[:3] == [
        "plan 3 by 2", "started all-labels fl_upper seed 0", "started data.labelled=1 fl_lower seed 0",
    ]  # fmt: skip
    assert heard.most == 2


def test_a_failed_run_leaves_the_tables_of_all_others(
    study: tuple[Path, StudyTable], tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "study"
    shutil.copytree(study[0], out)
    for name in ("study.md", "data.labelled=1/table.md", "data.labelled=2/table.md"):
        (out / name).unlink()
    (out / "data.labelled=2" / "fl_lower-seed1" / "summary.json").unlink()

    def fails(*_: Any, **__: Any) -> None:
        raise PolyclinicError("no room.")

    monkeypatch.setattr(grid_module, "run_in_this_process", fails)
    with pytest.raises(
        PolyclinicError, match=r"1 of 6 runs failed; .*\n  data\.labelled=2 fl_lower seed 1: no room; see"
    ):
        polyclinic.study(tiny_recipe_file, "data.labelled=1,2", METHODS, out=out, seeds=2, overrides=FAST, jobs=1)
    assert "Not finished" not in (out / "data.labelled=1" / "table.md").read_text()
    assert "Not finished: fl_lower seed 1." in (out / "data.labelled=2" / "table.md").read_text()
    assert "Not finished: data.labelled=2 fl_lower seed 1." in (out / "study.md").read_text()
