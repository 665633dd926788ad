"""Volumes as a hospital has them, from the files to masks, by the command line.

Several MR channels, one a file, one of them missing; long voxels; labels of several values that are one class; patches,
with a network that follows the spacing; repeated splits, tests after rounds; a method of several components.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest

from support import call

LONG = np.diag([3.0, 1.0, 1.0, 1.0])
RECIPE = """
method = "fgasl-gaa+fedma+randconv"
[data]
patch = [8, 16, 16]
foreground = 0.7
intensity = "z-score"
nonzero = true
labelled = 1
split = [0.6, 0.2, 0.2]
[network]
width = 2
depth = 3
anisotropic = "auto"
[training]
rounds = 2
batch_size = 2
[protocol]
kind = "repeated-splits"
repeats = 2
[evaluation]
metrics = ["dice", "hd95"]
rounds = [1]
[policies]
optimizer_state = "reset"
[engine]
name = "inprocess"
"""


def write_site(folder: Path, seed: int, values: tuple[int, int]) -> None:
    """Five patients with two channels; the second one's second channel is missing."""
    rng, grid = np.random.default_rng(seed), np.stack(np.mgrid[:9, :20, :18])
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for number in range(5):
        distance = np.square((grid - rng.integers(4, 6, 3).reshape(3, 1, 1, 1)) * [[[[3]]], [[[1]]], [[[1]]]]).sum(0)
        label = np.where(distance < 4, values[1], np.where(distance < 25, values[0], 0)).astype(np.uint8)
        for channel in range(2):
            image = (rng.uniform(1, 2, label.shape) + (label > 0) * (channel + 1)).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(image, LONG), folder / f"imagesTr/p{number}_{channel:04d}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, LONG), folder / f"labelsTr/p{number}.nii.gz")
    (folder / "imagesTr" / "p1_0001.nii.gz").unlink()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volumes") / "brains"
    write_site(folder / "gbm", 0, (2, 4))
    write_site(folder / "msd", 1, (1, 3))
    (folder / "federation.toml").write_text('missing_channels = "zeros"\n[labels]\ntumour = "nonzero"\n')
    return folder


def test_from_the_files_to_masks(federation: Path, tmp_path: Path) -> None:
    checked = call("data", "check", federation, "--json")
    assert checked.code == 0, checked.out
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(f'federation = "{federation}"\n{RECIPE}')
    trained = call("run", recipe, "--out", run)
    assert trained.code == 0, trained.err
    settled = tomllib.loads((run / "recipe.toml").read_text())
    assert settled["network"]["poolings"] == [[1, 2, 2], [2, 2, 2]], "3 mm wait until the others have 2"
    assert settled["network"]["kernels"] == [[1, 3, 3], [3, 3, 3], [3, 3, 3]]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["at_rounds"].keys() == {"1"}
    assert summary["repeats"].keys() == {"repeat-1", "repeat-2"}
    assert all(value is not None for value in summary["average"].values())
    assert "Average over sites after a round" in trained.out
    predicted = call("predict", run, federation / "gbm" / "imagesTr", "--out", tmp_path / "masks", "--part", "repeat-2")
    assert predicted.code == 0, predicted.err
    masks = sorted((tmp_path / "masks").glob("*.nii.gz"))
    assert [path.name for path in masks] == [f"p{number}.nii.gz" for number in range(5)]
    mask = nibabel.load(masks[1])
    assert mask.shape == (9, 20, 18)  # type: ignore[attr-defined]
    assert np.allclose(mask.affine, LONG)  # type: ignore[attr-defined]
