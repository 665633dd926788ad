"""The recipes of FGASL's three tasks: as in the paper, on folders as they ask for, and in small on the demos."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

import polyclinic
from polyclinic.data.phantoms import DEMOS
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import validated
from polyclinic.recipe.files import load_recipe, shipped_recipes

TASKS = ("cardiac", "spine", "bladder")
SLICES = 2
TINY = [
    "data.size=[16,16]", "data.labelled=3", "network.width=4", "network.depth=2", "training.rounds=1",
    "training.batch_size=2",
]  # fmt: skip


def settings(name: str) -> dict[str, dict[str, object]]:
    """The settings of a recipe's components, with their defaults."""
    return {part.component: validated(part).model_dump() for part in parse_method(load_recipe(name).method).parts}


def write_folder(task: str, folder: Path, sites: list[str]) -> Path:
    """A folder as the head of a full recipe describes it, with three patients at each of these sites."""
    demo = DEMOS[task]
    lines = [f"classes = {json.dumps(list(demo.classes))}", "spatial_dims = 2"]
    if demo.regions:
        lines += ["[regions]", *(f'"{name}" = {json.dumps(list(of))}' for name, of in demo.regions.items())]
    folder.mkdir()
    (folder / "federation.toml").write_text("\n".join(lines) + "\n")
    for site in sites:
        for kind in ("images", "labels"):
            (folder / site / kind).mkdir(parents=True)
        for patient in range(3):
            for phase in ("_ED", "_ES") if task == "cardiac" else ("",):
                drawing = demo.draw(np.random.default_rng(patient), site, (20, 20, SLICES))
                for kind, array in (("images", drawing.image), ("labels", drawing.mask)):
                    volume = nibabel.Nifti1Image(array, np.diag([*drawing.spacing, 1.0]))
                    nibabel.save(volume, folder / site / kind / f"P{patient}{phase}.nii.gz")
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_full_recipes_run_on_a_folder_as_they_describe_it(task: str, tmp_path: Path) -> None:
    demo = DEMOS[task]
    sites = list(demo.cases)[:3]  # two train while the third is left out
    folder = write_folder(task, tmp_path / "data", sites)
    overrides = [f"federation={folder}", *TINY, "training.steps_per_epoch=1"]
    result = polyclinic.run(f"fgasl-{task}", out=tmp_path / "run", overrides=overrides)
    assert sorted(result.summary["sites"]) == sorted(sites)
    with (tmp_path / "run/cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == set(demo.regions or demo.classes[1:])
    # Slice by slice, of all patients of the site that is left out.
    slices = {(row["site"], row["image"]) for row in rows}
    assert len(slices) == len(sites) * 3 * SLICES * (2 if task == "cardiac" else 1)
    with (tmp_path / "run/labelled.csv").open() as file:
        assert {row["site"] for row in csv.DictReader(file)} == set(sites)


@pytest.mark.parametrize(("task", "method"), [*((task, None) for task in TASKS), ("spine", "fl_lower")])
def test_small_recipes_run_on_their_demo(
    task: str, method: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCLINIC_CACHE", str(tmp_path / "cache"))
    cases = dict.fromkeys(list(DEMOS[task].cases)[:2], 3)
    demo = dataclasses.replace(DEMOS[task], cases=cases, size=(16, 16, 4))
    monkeypatch.setitem(DEMOS, task, demo)
    overrides = [*TINY, "training.steps_per_epoch=2"]
    result = polyclinic.run(f"fgasl-{task}-small", out=tmp_path / "run", method=method, overrides=overrides)
    assert sorted(result.summary["sites"]) == sorted(demo.cases)
    assert set(result.summary["average"]) >= {"dice", "iou", "hd95", "asd"}


def test_settings_of_the_paper() -> None:
    sizes, labelled, rates = (288, 256, 160), (50, 30, 50), (1e-4, 1e-4, 1e-5)
    for task, size, labels, lr in zip(TASKS, sizes, labelled, rates, strict=True):
        recipe = load_recipe(f"fgasl-{task}")
        training, network = recipe.training, recipe.network
        assert recipe.data.size == (size, size)
        assert recipe.data.labelled == labels
        assert (training.optimizer, training.lr, training.betas) == ("adam", lr, (0.9, 0.99))
        assert (training.rounds, training.local_epochs, training.batch_size) == (100, 1, 8)
        assert (training.loss, training.schedule, training.steps_per_epoch) == ("dice-ce", "constant", None)
        assert (network.width, network.depth, network.norm) == (16, 4, "batch")
        assert (recipe.policies.optimizer_state, recipe.policies.distance_penalty) == ("keep", 100)
        assert recipe.augmentation.moves
        assert recipe.strong.geometry
        # The released code's view: nothing but contrast, brightness and blur, clipped.
        assert (recipe.strong.contrast_range, recipe.strong.clip) == ((0.1, 2.0), True)
        assert (recipe.strong.gamma, recipe.strong.noise) == (0, 0)


@pytest.mark.parametrize("size", ["", "-small"])
def test_settings_of_the_method(size: str) -> None:
    for task in TASKS:
        spine, parts = task == "spine", settings(f"fgasl-{task}{size}")
        teachers, alignment = parts["dual_teacher"], parts["perturbation_invariance"]
        assert (teachers["weight"], teachers["ema"], teachers["smoothing"]) == (1.0, 0.99, 0.9)
        assert (teachers["delta_start"], teachers["delta_end"]) == ((0.1, 0.5) if spine else (0.15, 0.3))
        assert (alignment["weight"], alignment["probability"]) == ((0.5, 0.5) if spine else (0.3, 0.3))
        assert alignment["perturbation"] == "dropout"
        assert "gaa" in parts


@pytest.mark.parametrize("name", [f"fgasl-{task}{size}" for task in TASKS for size in ("", "-small")])
def test_sites_are_judged_unseen_and_no_label_beyond_the_budget_chooses_the_model(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.protocol.kind == "leave-one-site-out"
    assert recipe.training.select == "last"
    assert recipe.evaluation.metrics == ("dice", "iou", "hd95", "asd")
    assert (recipe.evaluation.per, recipe.evaluation.units) == ("image", "pixel")
    if name.endswith("-small"):
        assert recipe.federation == f"demo:{name.split('-')[1]}"
        assert isinstance(recipe.data.labelled, int)
        # Every site of the demo has more training slices than labels.
        assert recipe.data.labelled < 0.5 * 4 * min(DEMOS[name.split("-")[1]].cases.values())


def test_there_are_six_of_them() -> None:
    assert sorted(name for name in shipped_recipes() if name.startswith("fgasl-")) == sorted(
        f"fgasl-{task}{size}" for task in TASKS for size in ("", "-small")
    )
