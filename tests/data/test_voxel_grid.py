"""From a file's grid to the prepared grid and back: nothing is turned, drifts or gets lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from nibabel.orientations import aff2axcodes

from data_support import blobs, dice, federation_of, one_hot, picture_item, volume_item
from polyclinic.data import preprocessing
from polyclinic.data.preprocessing import geometry_of, prepare, to_file_grid
from polyclinic.data.voxel_grid import probabilities_on_file_grid
from polyclinic.recipe import DataSettings


@given(st.permutations([0, 1, 2]), st.tuples(*[st.booleans()] * 3), st.sampled_from([None, 0, 1, 2]), st.booleans())
@settings(deadline=None, max_examples=25)
def test_flips_turns_slices_and_padding_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], flips: tuple[bool, ...], axis: Any, padded: bool
) -> None:
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[order] * np.where(flips, -1, 1) * (1.0, 1.5, 3.0)
    affine[:3, 3] = (-20, 30, 5)
    label = blobs((9, 7, 6))
    item = volume_item(tmp_path_factory.mktemp("back"), label.astype(np.float32), label, affine)
    whole = federation_of(3 if axis is None else 2, item, sliced=axis is not None)
    size = (11, 12, 13) if axis is None else (12, 11)
    keys: dict[str, Any] = {"size": size, "fit": "pad-crop"} if padded else {}
    chosen = DataSettings(slice_axis=2 if axis is None else axis, **keys)
    prepared = prepare(item, whole, chosen)
    np.testing.assert_array_equal(to_file_grid(one_hot(prepared), prepared[0].geometry), label)


@pytest.mark.parametrize(
    "keys",
    [
        {"size": (48, 48, 32)},
        {"size": (80, 64, 56)},
        {"spacing": (1.2, 0.9, 1.4)},
        {"spacing": (1.2, 0.9, 1.4), "size": (56, 56, 48)},
        {"spacing": (1.5, 1.5, 1.5), "size": (90, 90, 60), "fit": "pad-crop"},
    ],
)
@pytest.mark.parametrize("oblique", [False, True])
def test_resampled_masks_come_back_nearly(tmp_path: Path, keys: dict[str, Any], oblique: bool) -> None:
    affine = np.array([[0.0, 1.1, 0, -8], [-1.3, 0, 0, 5], [0, 0, -0.9, 3], [0, 0, 0, 1]])
    if oblique:
        turn = np.deg2rad(12)
        rotation = np.eye(4)
        rotation[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
        affine = rotation @ affine
    label = blobs((60, 72, 48))
    item = volume_item(tmp_path, label.astype(np.float32), label, affine)
    assert aff2axcodes(affine) != ("R", "A", "S")
    prepared = prepare(item, federation_of(3, item), DataSettings(**keys))
    back = to_file_grid(one_hot(prepared), prepared[0].geometry)
    assert back.shape == label.shape
    assert back.dtype == np.uint8
    for value in (1, 2):
        assert dice(back, label, value) > 0.95


@pytest.mark.parametrize("keys", [{"size": (56, 56, 40)}, {"spacing": (1.2, 0.9, 1.4), "size": (80, 64, 56)}])
def test_nothing_drifts_by_part_of_a_voxel(tmp_path: Path, keys: dict[str, Any]) -> None:
    affine = np.array([[0.0, 1.1, 0, -8], [-1.3, 0, 0, 5], [0, 0, -0.9, 3], [0, 0, 0, 1]])
    mask = (blobs((60, 72, 48)) > 0).astype(np.uint8)
    item = volume_item(tmp_path, mask.astype(np.float32), mask, affine)
    prepared = prepare(item, federation_of(3, item), DataSettings(intensity="none", **keys))[0]
    soft = torch.cat([1 - prepared.image, prepared.image])  # the interpolated mask, as a network would see it
    back = to_file_grid(soft, prepared.geometry)
    assert dice(back, mask, 1) > 0.98
    drift = np.argwhere(back).mean(axis=0) - np.argwhere(mask).mean(axis=0)
    assert np.abs(drift).max() < 0.1  # half a voxel would be a wrong convention


def test_pictures_and_resized_slices_come_back(tmp_path: Path) -> None:
    flat = blobs((90, 61))
    item = picture_item(tmp_path, flat, flat)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(48, 64)))
    back = to_file_grid(one_hot(prepared), prepared[0].geometry)
    assert min(dice(back, flat, value) for value in (1, 2)) > 0.95
    solid = blobs((40, 36, 7))
    item = volume_item(tmp_path, solid.astype(np.float32), solid, np.diag([-1.0, -1.0, 4, 1]))
    prepared = prepare(item, federation_of(2, item, sliced=True), DataSettings(size=(32, 48)))
    back = to_file_grid(one_hot(prepared), prepared[0].geometry)
    assert min(dice(back, solid, value) for value in (1, 2)) > 0.95


def test_what_a_crop_cut_off_is_background(tmp_path: Path) -> None:
    label = np.ones((12, 10), np.uint8)
    item = picture_item(tmp_path, label, label)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(4, 6), fit="pad-crop"))
    back = to_file_grid(one_hot(prepared), prepared[0].geometry)
    assert back[4:8, 2:8].all()
    assert back.sum() == 24


def test_probabilities_come_back_with_the_classes_and_certainty_outside_of_a_crop(tmp_path: Path) -> None:
    item = picture_item(tmp_path, np.zeros((12, 10), np.uint8))
    geometry = geometry_of(item, federation_of(2, item), DataSettings(size=(4, 6), fit="pad-crop"))
    prediction = torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(0)).softmax(0)
    back = probabilities_on_file_grid(prediction, geometry)
    assert (back.shape, back.dtype) == ((3, 12, 10), np.float32)
    np.testing.assert_allclose(back[:, 4:8, 2:8], prediction, atol=1e-6)
    np.testing.assert_array_equal(back.argmax(0), to_file_grid(prediction, geometry))
    outside = np.ones((12, 10), bool)
    outside[4:8, 2:8] = False
    assert (back[0, outside] == 1).all()
    assert (back[1:, outside] == 0).all()


def test_a_cropped_and_resized_prediction_comes_back_to_its_place(tmp_path: Path) -> None:
    label = np.zeros((24, 30), np.uint8)
    label[8:16, 9:19] = 1
    item = picture_item(tmp_path, label, label)
    prepared = prepare(item, federation_of(2, item), DataSettings(crop=(16, 20), size=(8, 10)))
    np.testing.assert_array_equal(to_file_grid(one_hot(prepared), prepared[0].geometry), label)


def test_a_prediction_on_another_grid_is_refused(tmp_path: Path) -> None:
    item = picture_item(tmp_path, np.zeros((8, 6), np.uint8))
    geometry = geometry_of(item, federation_of(2, item), DataSettings())
    with pytest.raises(ValueError, match="expected"):
        to_file_grid(torch.zeros(3, 6, 8), geometry)


@given(st.permutations([0, 1, 2]), st.sampled_from([(0.7, 1.3, 2.0), None]), st.sampled_from(["resize", "pad-crop"]),
       st.sampled_from([(8, 9, 10), (16, 6, 8), "auto"]), st.sampled_from([None, (5, 20, 6)]))  # fmt: skip
@settings(deadline=None, max_examples=20)
def test_headers_alone_predict_the_prepared_grid(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], spacing: Any, fit: Any, size: Any, crop: Any
) -> None:
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[order] * (-1.1, 1.5, 0.8)
    item = volume_item(tmp_path_factory.mktemp("plan"), np.zeros((9, 12, 7), np.float32), affine=affine)
    whole = federation_of(3, item)
    chosen = DataSettings(spacing=spacing, fit=fit, size=size, crop=crop)
    planned, real = geometry_of(item, whole, chosen), prepare(item, whole, chosen)[0]
    assert planned.prepared_shape == real.geometry.prepared_shape == tuple(real.image.shape[1:])
    np.testing.assert_allclose(planned.prepared_affine, real.geometry.prepared_affine, atol=1e-6)
    assert (planned.shape, planned.samples) == ((9, 12, 7), 1)


UNMOVED = [
    (2, {}),
    (2, {"size": (12, 10)}),
    (2, {"size": (12, 10), "fit": "pad-crop", "intensity": "percentile"}),
    (2, {"crop": (12, 20), "size": (12, 10), "intensity": "z-score"}),
    (3, {}),
    (3, {"size": (12, 10, 6), "intensity": "z-score", "nonzero": True}),
    (3, {"size": (12, 10, 6), "fit": "pad-crop", "crop": (12, 10, 6), "intensity": "percentile"}),
    (3, {"orientation": "ras", "intensity": "z-score"}),
]


@pytest.mark.parametrize(("dims", "keys"), UNMOVED)
def test_an_image_that_need_not_move_is_what_monai_would_make_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dims: int, keys: dict[str, Any]
) -> None:
    shape = (12, 10, 6)[:dims]
    array = np.random.default_rng(1).integers(0, 255, shape, dtype=np.uint8)
    affine = np.array([[1.1, 0.1, 0, -8], [-0.1, 1.3, 0, 5], [0, 0, 0.9, 3], [0, 0, 0, 1]])
    label = blobs(shape)
    item = picture_item(tmp_path, array, label) if dims == 2 else volume_item(tmp_path, array, label, affine)
    federation, chosen = federation_of(dims, item), DataSettings(**keys)
    geometry = geometry_of(item, federation, chosen)
    (mine,) = prepare(item, federation, chosen)
    monkeypatch.setattr(preprocessing, "FileGrid", lambda voxels, affine: MetaTensor(voxels, affine=affine))
    (monais,) = prepare(item, federation, chosen)
    assert torch.equal(mine.image, monais.image)
    assert mine.label is not None
    assert monais.label is not None
    assert torch.equal(mine.label, monais.label)
    assert mine.spacing == monais.spacing
    for found in (geometry, mine.geometry):
        assert (found.shape, found.prepared_shape) == (monais.geometry.shape, monais.geometry.prepared_shape)
        np.testing.assert_array_equal(found.affine, monais.geometry.affine)
        np.testing.assert_array_equal(found.prepared_affine, monais.geometry.prepared_affine)


def test_monai_is_imported_only_to_move_voxels(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 255, (12, 10, 6), dtype=np.uint8)
    picture_item(tmp_path, array[..., 0], blobs((12, 10)), "picture")
    volume_item(tmp_path, array, blobs((12, 10, 6)), name="volume")
    code = f"""
import sys
from pathlib import Path
from data_support import federation_of
from polyclinic.data.federation import Item
from polyclinic.data.preprocessing import geometry_of, prepare
from polyclinic.recipe import DataSettings
folder = Path({str(tmp_path)!r})
picture = Item("a", "p", (folder / "picture.png",), folder / "picture_label.png", "p")
volume = Item("a", "v", (folder / "volume.nii",), folder / "volume_label.nii", "v")
for item, dims, size in ((picture, 2, (12, 10)), (volume, 3, (12, 10, 6)), (volume, 2, (12, 10))):
    for chosen in ("auto", size):
        keys = DataSettings(size=chosen, intensity="percentile")
        federation = federation_of(dims, item, sliced=item is volume and dims == 2)
        geometry_of(item, federation, keys)
        assert len(prepare(item, federation, keys)) == (6 if federation.volumes_as_slices else 1)
        assert "monai" not in sys.modules, (item.name, dims, chosen)
prepare(picture, federation_of(2, picture), DataSettings(size=(6, 5)))
assert "monai" in sys.modules
"""
    paths = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ, "PYTHONPATH": paths})
