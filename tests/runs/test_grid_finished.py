"""Which runs of a grid are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe, make_recipe
from polyclinic.runs.grid_finished import is_finished
from polyclinic.runs.grid_plan import GridRun
from support import write_volumes


@pytest.fixture
def run(finished: Callable[..., Path], tiny_recipe_file: Path) -> GridRun:
    """A finished run, with the recipe as its user wrote it: sizes and units are open."""
    folder = finished("fedavg")
    recipe = load_recipe(tiny_recipe_file)
    assert (recipe.data.size, recipe.evaluation.units) == ("auto", "auto")
    return GridRun("fedavg seed 0", "fedavg", folder, recipe, folder.parent)


def test_a_finished_run_is_recognised_by_its_folder(run: GridRun, tmp_path: Path) -> None:
    assert is_finished(run)
    assert not is_finished(replace(run, folder=tmp_path / "nothing"))


@pytest.mark.parametrize("change", [{"engine.workers": 3}, {"training.quorum": 2}, {"data.cache": "elsewhere"}])
def test_what_changes_no_weights_may_differ(run: GridRun, change: dict[str, object]) -> None:
    assert is_finished(replace(run, recipe=with_changes(run.recipe, change)))


def test_a_relative_path_to_the_same_federation_is_the_same(run: GridRun, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Path(run.recipe.federation)
    monkeypatch.chdir(federation.parent)
    assert is_finished(replace(run, recipe=with_changes(run.recipe, {"federation": federation.name})))


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.lr", 0.5), ("data.size", (32, 32)), ("evaluation.units", "mm"), ("federation", "demo:nuclei")],
)
def test_another_recipe_is_an_error(run: GridRun, key: str, value: object) -> None:
    with pytest.raises(PolyclinicError, match=rf"recipe\.toml: differs from the recipe to resume in {key}; resume"):
        is_finished(replace(run, recipe=with_changes(run.recipe, {key: value})))


def test_poolings_that_a_run_settled_from_the_spacing_are_no_other_recipe(tmp_path: Path) -> None:
    """A grid of volumes with ``network.anisotropic = "auto"`` could not go on."""
    write_volumes(tmp_path / "fed", np.diag([1.0, 1.0, 4.0, 1.0]), shape=(16, 16, 8))
    recipe = make_recipe(
        {
            "federation": str(tmp_path / "fed"),
            "data": {"size": [16, 16, 8]},
            "network": {"width": 2, "depth": 3, "anisotropic": "auto"},
            "training": {"rounds": 1, "steps_per_epoch": 1, "batch_size": 1},
            "evaluation": {"metrics": ["dice"]},
        }
    )
    folder = polyclinic.run(recipe, out=tmp_path / "run").folder
    assert load_recipe(folder / "recipe.toml").network.poolings is not None
    run = GridRun("fedavg seed 0", "fedavg", folder, recipe, tmp_path)
    assert is_finished(run)
    for key, value in {"network.anisotropic": "off", "network.depth": 1, "network.width": 4}.items():
        with pytest.raises(PolyclinicError, match="differs from the recipe"):
            is_finished(replace(run, recipe=with_changes(recipe, {key: value})))
