"""A grid of runs: its numbers, its resumption, its processes."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

import polyclinic
import polyclinic.runs.grid as module
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
    return out, polyclinic.compare(tiny_recipe_file, METHODS, out=out, seeds=2, overrides=FAST)


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
    assert lines[0] == "| method | north | south | average | vs fedavg |"
    values = [found["fedbn", seed]["average"]["dice"] for seed in (0, 1)]
    difference = mean(values) - means["fedavg", "average"]
    assert lines[3].startswith("| fedbn |")
    assert lines[3].endswith(f"| {100 * mean(values):.2f} ± {100 * stdev(values):.2f} | {100 * difference:+.2f} |")
    assert table.metric == "dice"


def test_an_interrupted_grid_repeats_only_what_is_missing(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = grid
    before = summaries(out)
    (out / "fedbn-seed1" / "summary.json").unlink()
    (out / "fedbn-seed1" / "checkpoints" / "all" / "server.safetensors").unlink()
    trained: list[Path] = []
    real = module.run

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        if not (out / "summary.json").exists():
            trained.append(out)
        return real(recipe, out=out, **more)

    monkeypatch.setattr(module, "run", spy)
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


def test_side_by_side_gives_the_same_numbers_and_shows_progress(
    grid: tuple[Path, Comparison], tiny_recipe_file: Path, tmp_path: Path
) -> None:
    """Real processes."""
    _, table = grid
    said: list[str] = []

    class Screen:
        def __init__(self, title: str) -> None: ...
        def __enter__(self) -> Screen:
            return self

        def __exit__(self, *_: object) -> None: ...
        def on_message(self, text: str) -> None:
            said.append(text)

    recipe = load_recipe(tiny_recipe_file, FAST)
    plan = plan_grid(recipe, tuple(METHODS[:2]), (0,), tmp_path / "grid")
    found = compare_grid(plan, jobs=2, screen=Screen)
    for method in METHODS[:2]:
        for column in table.columns:
            assert found.values[method][column] == table.values[method][column][:1]
    assert said[-1].endswith("finished (2 of 2)")
    assert sum("started, its progress goes to" in text for text in said) == 2


def test_a_run_that_fails_in_its_process_is_named_with_its_log(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for Python, which would take seconds to find out."""
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho some progress\necho error: no room >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    plan = plan_grid(load_recipe(tiny_recipe_file), ("fedavg", "fedbn"), (4,), tmp_path / "grid")
    expected = r"fed\w+ with seed 4 ended with code 2 \(error: no room\); see .*fed\w+-seed4/output\.log\."
    with pytest.raises(PolyclinicError, match=expected):
        module.run_grid(plan, jobs=2)


def test_a_grid_with_other_settings_is_not_mixed_in(grid: tuple[Path, Comparison], tiny_recipe_file: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"differs from the recipe to resume in training\.lr"):
        polyclinic.compare(tiny_recipe_file, METHODS, out=grid[0], seeds=2, overrides=[*FAST, "training.lr=0.5"])


def test_a_wrong_method_or_metric_stops_before_anything_runs(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="'fedavgg' is not a method, did you mean 'fedavg'"):
        polyclinic.compare(tiny_recipe_file, ["fedbn", "fedavgg"], out=tmp_path / "grid")
    with pytest.raises(PolyclinicError, match=r"--metric hd: not measured; evaluation\.metrics holds dice, iou"):
        polyclinic.compare(tiny_recipe_file, ["fedbn"], out=tmp_path / "grid", metric="hd")
    assert not (tmp_path / "grid").exists()
