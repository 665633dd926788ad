"""Preparation without polyclinic gives what polyclinic's own gives, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.preprocessing import prepare as own_prepare
from polyclinic.data.preprocessing import to_file_grid as own_to_file_grid
from polyclinic.data.site_intensity import SiteIntensity
from polyclinic.export.settings import model_settings
from polyclinic.export.standalone.image_files import Image as Voxels
from polyclinic.export.standalone.image_files import ImageFiles, read_image
from polyclinic.export.standalone.preparation import prepare, to_file_grid
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe

TURN = np.array([[np.cos(0.1), -np.sin(0.1), 0], [np.sin(0.1), np.cos(0.1), 0], [0, 0, 1]])
OBLIQUE = np.eye(4)
OBLIQUE[:3, :3] = TURN @ np.array([[0, -1.5, 0], [0, 0, 2.0], [1.0, 0, 0]])
OBLIQUE[:3, 3] = (40, -12, 7)
SHEARED = np.array([[1.0, 0, 0.3, 5], [0, 1.2, 0, -3], [0, 0.1, 2.0, 9], [0, 0, 0, 1]])
AFFINES = {"straight": np.diag([1.0, 1.2, 3.0, 1.0]), "oblique": OBLIQUE, "sheared": SHEARED}
VOLUMES: dict[str, dict[str, Any]] = {
    "as it is": {"size": "auto"},
    "spacing": {"size": "auto", "spacing": (1.3, 1.0, 1.7)},
    "the spacing it has": {"size": "auto", "spacing": (1.0, 1.2, 3.0)},
    "orientation": {"size": "auto", "orientation": "LPI", "intensity": "percentile"},
    "smaller and larger": {"size": (6, 16, 11), "intensity": "z-score", "nonzero": True},
    "padded and cut": {"size": (6, 16, 11), "fit": "pad-crop", "intensity": "z-score"},
    "by a site's numbers": {"size": (6, 16, 11), "intensity": "site", "nonzero": True},
    "everything": {"size": (12, 8, 8), "crop": (7, 9, 30), "spacing": (1.5, 1.5, 1.5), "intensity": "none"},
}
SLICES: dict[str, dict[str, Any]] = {
    "slices": {"size": (12, 8)},
    "neighbours": {"size": (16, 7), "neighbours": 1, "slice_axis": 0, "spacing": (1.0, 1.5, 2.0)},
    "by a site's numbers": {"size": (12, 8), "neighbours": 1, "intensity": "site", "intensity_statistics": "channel"},
}


def agree(
    paths: tuple[Path, ...], task: Task, data: dict[str, Any], sliced: bool = False, places: tuple[int, ...] = ()
) -> np.ndarray:
    """Prepare an image both ways and bring random probabilities back both ways; the mask."""
    recipe = tiny_recipe(data=data)
    federation, item = Federation("f", task, {}, Path(), sliced), Item("", "i", paths, None, "i", places=places)
    known = with_own_intensity(federation, [item], recipe.data)
    wanted = own_prepare(item, known, recipe.data)
    settings = model_settings(build_workspace(recipe, task), federation)
    image = read_image(ImageFiles("i", paths, places), task.image_channels)
    with_numbers = model_settings(build_workspace(recipe, task), known)
    np.testing.assert_allclose(prepare(image, settings).samples, prepare(image, with_numbers).samples, atol=1e-5)
    found = prepare(image, settings)
    np.testing.assert_allclose(found.samples, torch.stack([one.image for one in wanted]), atol=2e-5, rtol=1e-5)
    generator = torch.Generator().manual_seed(0)
    chances = torch.rand(len(wanted), 3, *found.samples.shape[2:], generator=generator).softmax(1)
    whole = chances if sliced else chances[0]
    back = to_file_grid(chances.numpy(), found)
    np.testing.assert_allclose(back.sum(0), 1, atol=1e-5)
    mask = own_to_file_grid(whole, wanted[0].geometry)
    np.testing.assert_array_equal(back.argmax(0), mask)
    return mask


def write_volume(path: Path, affine: np.ndarray, shape: tuple[int, ...] = (10, 8, 12)) -> tuple[Path, ...]:
    rng = np.random.default_rng(3)
    voxels = rng.normal(50, 20, shape) * (rng.random(shape) > 0.2)
    nibabel.save(nibabel.Nifti1Image(voxels.astype(np.float32), affine), path)
    return (path,)


@pytest.mark.parametrize("affine", AFFINES)
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str, affine: str, tmp_path: Path) -> None:
    paths = write_volume(tmp_path / "v.nii.gz", AFFINES[affine])
    mask = agree(paths, Task(("background", "a", "b"), 1, 3), VOLUMES[name])
    assert set(np.unique(mask)) == {0, 1, 2}


@pytest.mark.parametrize("affine", AFFINES)
@pytest.mark.parametrize("name", SLICES)
def test_volumes_slice_by_slice(name: str, affine: str, tmp_path: Path) -> None:
    paths = write_volume(tmp_path / "v.nii.gz", AFFINES[affine])
    neighbours = SLICES[name].get("neighbours", 0)
    agree(paths, Task(("background", "a", "b"), 2 * neighbours + 1, 2, "", neighbours), SLICES[name], sliced=True)


@pytest.mark.parametrize("data", [
    {"size": "auto"}, {"size": (16, 40)}, {"size": (16, 40), "fit": "pad-crop", "intensity": "full-range"},
    {"size": (20, 20), "crop": (12, 99), "intensity": "percentile", "percentiles": (5.0, 90.0)},
    {"size": (40, 20), "crop": (12, 99), "fit": "pad-crop", "intensity": "site", "intensity_statistics": "channel"},
])  # fmt: skip
def test_pictures(data: dict[str, Any], tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(colours).save(tmp_path / "p.png")
    agree((tmp_path / "p.png",), Task(("background", "a", "b"), 3, 2), data)


def test_files_with_a_nominal_spacing_are_resampled(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)).save(tmp_path / "p.png")
    task = Task(("background", "a", "b"), 1, 2, spacing=(0.5, 0.7))
    agree((tmp_path / "p.png",), task, {"size": "auto", "spacing": (1.0, 1.0)})


@pytest.mark.parametrize("statistics", ["scalar", "channel"])
def test_channels_without_a_file_stay_zero_and_count_in_no_mean(statistics: str, tmp_path: Path) -> None:
    paths = write_volume(tmp_path / "v_0001.nii.gz", AFFINES["straight"])
    task = Task(("background", "a", "b"), 3, 3, zero_fill=True)
    data = {"size": "auto", "intensity": "site", "intensity_statistics": statistics}
    agree(paths, task, data, places=(1,))
    image = read_image(ImageFiles("v", paths, (1,)), 3)
    settings = model_settings(build_workspace(tiny_recipe(data=data), task), Federation("f", task, {}, Path()))
    found = prepare(image, settings).samples[0]
    assert not found[[0, 2]].any()
    assert (found[1].mean(), found[1].std()) == pytest.approx((0, 1), abs=1e-5)


def test_integers_of_volumes_are_taken_as_they_are_and_those_of_pictures_as_shares() -> None:
    task = Task(("background", "a"), 1, 2)
    recipe = tiny_recipe(data={"size": "auto", "intensity": "site"})
    numbers = {"": SiteIntensity((0.5,), (0.25,), False, 1)}
    settings = model_settings(build_workspace(recipe, task), Federation("f", task, {}, Path(), intensity=numbers))
    voxels = np.full((1, 4, 4), 255, np.float32)
    assert (prepare(Voxels(voxels, None, 255.0, picture=True), settings).samples == 2).all()
    assert (prepare(Voxels(voxels, np.eye(4), 255.0), settings).samples == (255 - 0.5) / 0.25).all()


@pytest.mark.parametrize("intensity", ["zero-one", "percentile", "z-score", "site"])
def test_a_constant_image_is_no_division_by_zero(intensity: str, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 9, np.uint8)).save(tmp_path / "p.png")
    agree((tmp_path / "p.png",), Task(("background", "a", "b"), 1, 2), {"size": (8, 8), "intensity": intensity})


def test_what_does_not_fit_the_model_gets_a_sentence(tmp_path: Path) -> None:
    task = Task(("background", "a"), 1, 2)
    recipe = tiny_recipe(data={"size": (8, 8), "spacing": (1.0, 1.0), "intensity": "full-range"})
    settings = model_settings(build_workspace(recipe, task), Federation("f", task, {}, Path()))
    with pytest.raises(ValueError, match="has 3 axes, but the model is for images with 2"):
        prepare(Voxels(np.zeros((1, 4, 4, 4), np.float32), None, None), settings)
    with pytest.raises(ValueError, match="images that know their spacing"):
        prepare(Voxels(np.zeros((1, 4, 4), np.float32), None, None), settings)
    with pytest.raises(ValueError, match="unsigned integers"):
        prepare(Voxels(np.zeros((1, 4, 4), np.float32), np.eye(4), None), settings)
