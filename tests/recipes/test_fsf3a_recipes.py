"""The recipes of FSF3A: as in the paper, on a folder as it asks for, and in small on the demo."""

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
from polyclinic.recipe.files import load_recipe
from support import Keeper, tiny_recipe, tiny_server

TINY = [
    "data.size=[8,8,8]", "network.width=2", "network.depth=2", "training.rounds=1", "training.local_epochs=2",
    "training.batch_size=2", "data.split=[0.5,0.0,0.5]", "evaluation.rounds=[1]",
]  # fmt: skip
SITES = ("upenn-gbm", "ucsf-pdgm", "msd")


def write_folder(folder: Path) -> Path:
    """Two sites in nnU-Net's layout and one in the Decathlon's, with two patients each."""
    folder.mkdir()
    described = 'spatial_dims = 3\nmissing_channels = "zeros"\n[labels]\ntumour = "nonzero"\n'
    (folder / "federation.toml").write_text(described)
    for site in SITES:
        for kind in ("imagesTr", "labelsTr"):
            (folder / site / kind).mkdir(parents=True)
        names = ["BRATS_001", "BRATS_002"]
        for number, name in enumerate(names):
            drawing = DEMOS["tumour"].draw(np.random.default_rng(number), "hospital-a", (12, 10, 8))
            affine = np.diag([*drawing.spacing, 1.0])
            images = {f"{name}_{channel:04d}": drawing.image[..., channel] for channel in range(4)}
            for stem, array in ({name: drawing.image} if site == "msd" else images).items():
                nibabel.save(nibabel.Nifti1Image(array, affine), folder / site / "imagesTr" / f"{stem}.nii.gz")
            mask = drawing.mask * (3 if site == "msd" else 4)
            nibabel.save(nibabel.Nifti1Image(mask, affine), folder / site / "labelsTr" / f"{name}.nii.gz")
        if site == "msd":
            listed = [{"image": f"./imagesTr/{n}.nii.gz", "label": f"./labelsTr/{n}.nii.gz"} for n in names]
            labels = {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"}
            (folder / site / "dataset.json").write_text(json.dumps({"labels": labels, "training": listed}))
    (folder / "ucsf-pdgm/imagesTr/BRATS_002_0001.nii.gz").unlink()
    return folder


def test_the_full_recipe_runs_on_a_folder_as_it_describes_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    result = polyclinic.run("fsf3a", out=tmp_path / "run", overrides=[f"federation={folder}", *TINY])
    assert sorted(result.summary["sites"]) == sorted(SITES)
    with (tmp_path / "run/cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"tumour"}
    assert {row["part"] for row in rows} == {"repeat-1", "repeat-2", "repeat-3"}
    assert list(result.summary["at_rounds"]) == ["1"]


def test_the_small_recipe_runs_on_its_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCLINIC_CACHE", str(tmp_path / "cache"))
    demo = dataclasses.replace(DEMOS["tumour"], cases={"hospital-a": 3, "hospital-b": 2}, size=(8, 8, 8))
    monkeypatch.setitem(DEMOS, "tumour", demo)
    result = polyclinic.run("fsf3a-small", out=tmp_path / "run", overrides=TINY)
    assert set(result.summary["average"]) >= {"dice", "iou", "precision", "sensitivity", "hd95"}


# The rows of Tables 3 and 4, as docs/reference/methods/fsf3a.md writes them.
@pytest.mark.parametrize(
    "method",
    [
        "fsf3a(weighting=uniform)", "fsf3a(weighting=uniform)+proximal", "fsf3a(weighting=uniform)+scaffold",
        "fsf3a+fednova", "fsf3a+fedma", "fsf3a-gradient_alignment", "fsf3a-localized_contrast",
    ],
)  # fmt: skip
def test_the_papers_rows_are_expressions(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, training={"rounds": 2, "local_epochs": 1, "optimizer": "sgd"})
    server = tiny_server(tmp_path, recipe, 3, sizes={"north": 2, "south": 1}, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    terms = set(keeper.events[-1]["losses"]["north"])
    parts = {part.component for part in parse_method(method).parts}
    assert terms >= {"segmentation", *({"gradient_alignment", "localized_contrast"} & parts)}


def test_settings_of_the_paper() -> None:
    recipe = load_recipe("fsf3a")
    training = recipe.training
    assert (recipe.data.size, recipe.data.split) == ((128,) * 3, (0.75, 0.15, 0.1))
    assert (training.rounds, training.local_epochs, training.batch_size) == (120, 20, 8)
    assert (training.optimizer, training.lr, training.betas) == ("adam", 1e-5, (0.9, 0.999))
    assert (recipe.network.width, recipe.network.depth) == (16, 4)
    assert (recipe.protocol.kind, recipe.protocol.repeats) == ("repeated-splits", 3)
    assert recipe.evaluation.rounds == (40, 80, 120)
    assert recipe.evaluation.metrics[:4] == ("dice", "iou", "precision", "sensitivity")


@pytest.mark.parametrize("name", ["fsf3a", "fsf3a-small"])
def test_settings_of_the_method(name: str) -> None:
    parts = {part.component: validated(part).model_dump() for part in parse_method(load_recipe(name).method).parts}
    assert parts["weighted_mean"]["weighting"] == "samples"
    assert parts["gradient_alignment"]["omega"] == 0.5
    penalty = parts["localized_contrast"]
    assert (penalty["gamma"], penalty["temperature"], penalty["pairing"]) == (0.5, 0.5, "temporal")
