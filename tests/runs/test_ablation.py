"""An ablation: which rows it has, what they are called, and that no run is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyclinic
import polyclinic.runs.grid as grid_module
from grid_support import recipe_with
from polyclinic.core.errors import PolyclinicError
from polyclinic.methods.expression import parse_method
from polyclinic.runs.ablation import AblationPlan, plan_ablation, split_components
from support import call

FAST = ["training.rounds=1", "training.local_epochs=1"]


def plan(out: Path, method: str, components: tuple[str, ...] | None = None) -> AblationPlan:
    return plan_ablation(recipe_with(), method, components, (0,), out)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of run folders that are trained from here on."""
    folders: list[str] = []
    real = grid_module.run_in_this_process

    def spy(recipe: Any, *, out: Path, **more: Any) -> Any:
        folders.append(out.name)
        return real(recipe, out=out, **more)

    monkeypatch.setattr(grid_module, "run_in_this_process", spy)
    return folders


def test_every_subset_is_a_row_from_the_base_to_the_whole(tmp_path: Path) -> None:
    made = plan(tmp_path, "pathfl")
    assert made.components == ("cse", "afa", "ssa"), "what aggregates comes last"
    assert made.kept == {
        "fedavg": (),
        "pathfl-afa-ssa": ("cse",),
        "pathfl-cse-ssa": ("afa",),
        "pathfl-cse-afa": ("ssa",),
        "pathfl-ssa": ("cse", "afa"),
        "pathfl-afa": ("cse", "ssa"),
        "pathfl-cse": ("afa", "ssa"),
        "pathfl": ("cse", "afa", "ssa"),
    }
    for row, kept in made.kept.items():
        method = parse_method(row)
        assert {part.component for part in method.parts} == {*kept, *(() if "ssa" in kept else ("weighted_mean",))}


def test_fgasl_has_the_rows_of_its_paper(tmp_path: Path) -> None:
    """Table 5 begins with FixMatch, and a row without DR has FixMatch in its place."""
    made = plan(tmp_path, "fgasl")
    assert made.components == ("dual_teacher", "perturbation_invariance", "gaa")
    assert next(iter(made.kept)) == "fixmatch(threshold=0.7,dice=true)"
    for row, kept in made.kept.items():
        parts = {part.component: part.settings for part in parse_method(row).parts}
        assert ("fixmatch" in parts) == ("dual_teacher" not in kept)
        if "fixmatch" in parts:
            assert parts["fixmatch"] == {"threshold": 0.7, "dice": True}


def test_the_plain_mean_stays_with_its_settings_and_named_components_alone_are_left_out(tmp_path: Path) -> None:
    made = plan(tmp_path, "fedbn")
    assert made.kept == {"fedbn-local_norm": (), "fedbn": ("local_norm",)}
    assert parse_method("fedbn-local_norm").parts[0].settings == {"weighting": "uniform"}
    assert list(plan(tmp_path, "pathfl", ("afa",)).kept) == ["pathfl-afa", "pathfl"]
    assert list(plan(tmp_path, "fedprox(mu=1)+median").kept) == [
        "fedavg", "fedprox(mu=1)+median-median", "fedprox(mu=1)+median-proximal", "fedprox(mu=1)+median",
    ]  # fmt: skip
    assert list(plan(tmp_path, "fedprox+median").kept)[1] == "fedprox"
    assert split_components(" cse, afa,") == ("cse", "afa")


MANY = "fedavg+proximal+model_contrast+local_norm+volume_dice+infonce+cse"


@pytest.mark.parametrize(
    ("method", "components", "words"),
    [
        ("fedavg", None, "consists of weighted_mean, and nothing of it can be left out"),
        (MANY, None, "its 6 components have 64 subsets; name at most 5 with --components, from proximal, "),
        ("pathfl", ("cse", "afaa"), "'afaa' cannot be left out of pathfl, did you mean 'afa'\\? These can: cse, afa"),
        ("fedbn", ("weighted_mean",), "'weighted_mean' cannot be left out of fedbn\\. These can: local_norm"),
        ("pathfl", ("cse", "cse"), "each once"),
        ("pathfl", (), "name at least one component"),
        ("pathfll", None, "'pathfll' is not a method"),
    ],
)
def test_what_cannot_be_left_out_gets_a_sentence(
    tmp_path: Path, method: str, components: tuple[str, ...] | None, words: str
) -> None:
    with pytest.raises(PolyclinicError, match=words):
        plan(tmp_path, method, components)


def test_more_rows_must_be_asked_for_by_name(tmp_path: Path) -> None:
    named = ("proximal", "model_contrast", "local_norm", "volume_dice", "infonce", "cse")
    assert len(plan(tmp_path, MANY, named).kept) == 64
    extra = ("afa", "fsr", "cdpa")
    with pytest.raises(PolyclinicError, match="9 components have 512 subsets, the most are 256"):
        plan(tmp_path, "+".join((MANY, *extra)), (*named, *extra))


def test_another_name_of_the_same_method_is_the_same_run(finished: Callable[..., Path]) -> None:
    first, second = (
        json.loads((finished(name) / "summary.json").read_text()) for name in ("fedavg", "fedprox-proximal")
    )
    assert first["sites"] == second["sites"]


def test_runs_of_a_comparison_are_kept_under_whatever_name(
    tiny_recipe_file: Path, tmp_path: Path, trained: list[str]
) -> None:
    out = tmp_path / "grid"
    compared = ["fedavg", "local", "fedavg+proximal(mu=0.01)"]
    polyclinic.compare(tiny_recipe_file, compared, out=out, seeds=1, overrides=FAST, jobs=1)
    trained.clear()
    table = polyclinic.ablate(tiny_recipe_file, "fedprox+median", out=out, seeds=1, overrides=FAST, jobs=1)
    assert trained == ["fedprox+median-proximal-seed0", "fedprox+median-seed0"]
    assert list(table.kept) == ["fedavg", "fedavg+proximal(mu=0.01)", "fedprox+median-proximal", "fedprox+median"]
    for row in table.kept:
        summary = json.loads((out / f"{row}-seed0" / "summary.json").read_text())
        assert table.mean(row) == summary["average"]["dice"]
    listed = json.loads((out / "grid.json").read_text())["methods"]
    assert listed == [*compared, "fedprox+median-proximal", "fedprox+median"], "what was compared stays in the list"
    assert (out / "table.md").read_text().startswith("| method | north | south | average | vs fedavg |")
    again = polyclinic.ablate(tiny_recipe_file, "fedprox+median", out=out, seeds=1, overrides=FAST)
    assert len(trained) == 2
    assert again == table
    with pytest.raises(PolyclinicError, match=r"holds an ablation of fedprox\+median; give another folder"):
        polyclinic.ablate(tiny_recipe_file, "fedprox", out=out, seeds=1, overrides=FAST)
    with pytest.raises(PolyclinicError, match="holds a comparison of seeds 0, which would lose some; give --seeds 0,"):
        polyclinic.ablate(tiny_recipe_file, "fedprox+median", out=out, seeds=[7], overrides=FAST)
    with pytest.raises(PolyclinicError, match=r"differs from the recipe to resume in training\.lr"):
        polyclinic.ablate(tiny_recipe_file, "fedbn", out=out, seeds=1, overrides=[*FAST, "training.lr=0.5"])
    done = call("compare", tiny_recipe_file, "--methods", "fedavg", "--seeds", "1", "--out", out, *_set(FAST))
    assert done.code == 0, done.err
    assert len(trained) == 2


def test_a_killed_ablation_goes_on_without_repeating_a_run(
    tiny_recipe_file: Path, tmp_path: Path, trained: list[str]
) -> None:
    out = tmp_path / "grid"
    command = ["ablate", str(tiny_recipe_file), "-m", "fedprox+median", "--seeds", "1", "--jobs", "1", "--out"]
    code = "from polyclinic.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command, str(out), *_set(FAST)], stderr=subprocess.DEVNULL, env={**os.environ}
    )
    try:
        for _ in range(6000):
            if (out / "fedprox-seed0" / "events.jsonl").exists() or process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.wait(timeout=60)
    before = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    assert process.returncode == -signal.SIGKILL
    assert 1 <= len(before) < 4
    table = polyclinic.ablate(tiny_recipe_file, "fedprox+median", out=out, seeds=1, overrides=FAST, jobs=1)
    assert sorted([*before, *trained]) == sorted(f"{row}-seed0" for row in table.kept)
    assert all((out / name / "summary.json").stat().st_mtime_ns == time for name, time in before.items())


def test_a_failed_run_leaves_the_table_of_the_others(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "grid", grid_module.run_in_this_process

    def fails(recipe: Any, **more: Any) -> Any:
        if recipe.method == "fedprox":
            raise PolyclinicError("no room.")
        return real(recipe, **more)

    monkeypatch.setattr(grid_module, "run_in_this_process", fails)
    with pytest.raises(PolyclinicError, match="1 of 2 runs failed"):
        polyclinic.ablate(tiny_recipe_file, "fedprox", out=out, seeds=1, overrides=FAST, jobs=1)
    text = (out / "ablation.md").read_text()
    assert "Not finished: fedprox seed 0." in text
    assert "proximal: no pair of rows is finished." in text


def _set(overrides: list[str]) -> list[str]:
    return [word for text in overrides for word in ("--set", text)]
