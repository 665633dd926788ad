from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_support import blobs, federation_of, picture_item, volume_item
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.preprocessing import prepare, resolve_size
from polyclinic.recipe import DataSettings

# size and labels


def test_shrinking_by_a_whole_factor_is_the_mean_of_blocks(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (16, 24, 3), dtype=np.uint8)
    item = picture_item(tmp_path, array)
    prepared = prepare(item, federation_of(2, item, channels=3), DataSettings(size=(4, 8), intensity="none"))[0]
    naive = array.reshape(4, 4, 8, 3, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(prepared.image, np.moveaxis(naive, -1, 0), rtol=1e-5)


def test_growing_is_linear_and_mixed_sizes_work(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(8, dtype=np.uint8) * 8, (16, 1))
    item = picture_item(tmp_path, ramp)
    grown = prepare(item, federation_of(2, item), DataSettings(size=(8, 16), intensity="none"))[0].image[0]
    naive = np.interp((np.arange(16) + 0.5) / 2 - 0.5, np.arange(8), ramp[0])
    np.testing.assert_allclose(grown, np.tile(naive, (8, 1)), atol=1e-4)


@given(
    st.integers(3, 40),
    st.integers(3, 40),
    st.integers(2, 40),
    st.integers(2, 40),
    st.sampled_from(["resize", "pad-crop"]),
)
@settings(deadline=None, max_examples=25)
def test_labels_never_get_values_between(
    tmp_path_factory: pytest.TempPathFactory, h: int, w: int, a: int, b: int, fit: Any
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    label = np.random.default_rng(h * w).choice([0, 2], (h, w))  # an interpolation would give 1
    item = picture_item(folder, np.zeros((h, w), np.uint8), label)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(a, b), fit=fit))[0]
    assert prepared.label is not None
    assert prepared.label.dtype == torch.uint8
    assert prepared.label.shape == (a, b)
    assert set(prepared.label.unique().tolist()) <= {0, 2}


def test_image_and_label_shrink_alike(tmp_path: Path) -> None:
    label = blobs((60, 44))
    item = picture_item(tmp_path, label * 100, label)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(20, 11), intensity="none"))[0]
    assert prepared.label is not None
    assert (prepared.image[0] / 100 - prepared.label).abs().mean() < 0.1
    shifted = torch.roll(prepared.label, 1, 0)
    assert (prepared.image[0] / 100 - prepared.label).abs().sum() < (prepared.image[0] / 100 - shifted).abs().sum() / 2


def test_pad_crop_keeps_the_middle(tmp_path: Path) -> None:
    array = np.arange(1, 7 * 5 + 1, dtype=np.uint8).reshape(7, 5)
    item = picture_item(tmp_path, array)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(3, 9), fit="pad-crop", intensity="none"))[0]
    np.testing.assert_array_equal(prepared.image[0], np.pad(array[2:5], ((0, 0), (2, 2))))


def test_a_crop_comes_before_the_size(tmp_path: Path) -> None:
    array = np.arange(8 * 10, dtype=np.uint8).reshape(8, 10)
    label = (array % 2).astype(np.uint8)
    item = picture_item(tmp_path, array, label)
    prepared = prepare(item, federation_of(2, item), DataSettings(crop=(4, 6), size=(2, 3), intensity="none"))[0]
    blocks = array[2:6, 2:8].reshape(2, 2, 3, 2).mean((1, 3))
    np.testing.assert_allclose(prepared.image[0], blocks)
    kept = prepare(item, federation_of(2, item), DataSettings(crop=(4, 6), intensity="none"))[0]
    assert kept.label is not None
    np.testing.assert_array_equal(kept.label, label[2:6, 2:8])
    smaller = prepare(item, federation_of(2, item), DataSettings(crop=(20, 6), intensity="none"))[0]
    np.testing.assert_array_equal(smaller.image[0], array[:, 2:8])


def test_a_crop_of_slices_leaves_their_number(tmp_path: Path) -> None:
    item = volume_item(tmp_path, np.zeros((9, 12, 5), np.float32))
    prepared = prepare(item, federation_of(2, item, sliced=True), DataSettings(crop=(6, 8), size=(3, 4)))
    assert [tuple(one.image.shape) for one in prepared] == [(1, 3, 4)] * 5


# intensity


def test_intensity_is_scaled_for_each_channel(tmp_path: Path) -> None:
    array = np.random.default_rng(4).normal(50, 9, (8, 7, 6, 2)).astype(np.float32)
    array[:3] = 0
    item = volume_item(tmp_path, array)
    whole = federation_of(3, item, channels=2)
    for channel in range(2):
        raw = array[..., channel]

        def scaled(channel: int = channel, **keys: Any) -> np.ndarray:
            return prepare(item, whole, DataSettings(**keys))[0].image[channel].numpy()

        np.testing.assert_allclose(scaled(), (raw - raw.min()) / np.ptp(raw), atol=1e-5)
        np.testing.assert_allclose(scaled(intensity="z-score"), (raw - raw.mean()) / raw.std(), atol=1e-4)
        body = raw[raw != 0]
        expected = np.where(raw != 0, (raw - body.mean()) / body.std(), 0)
        np.testing.assert_allclose(scaled(intensity="z-score", nonzero=True), expected, atol=1e-4)
        low, high = np.percentile(raw, [5, 90])
        expected = (np.clip(raw, low, high) - low) / (high - low)
        np.testing.assert_allclose(scaled(intensity="percentile", percentiles=(5, 90)), expected, atol=1e-4)
        np.testing.assert_array_equal(scaled(intensity="none"), raw)


@pytest.mark.parametrize(("kind", "highest"), [(np.uint8, 255), (np.uint16, 65535)])
def test_full_range_keeps_what_tells_images_apart(tmp_path: Path, kind: Any, highest: int) -> None:
    array = np.array([[3, 40], [highest // 3, 0]], kind)
    item = picture_item(tmp_path, array)
    prepared = prepare(item, federation_of(2, item), DataSettings(size=(2, 2), intensity="full-range"))[0]
    np.testing.assert_allclose(prepared.image[0], array / highest, rtol=1e-6)


def test_full_range_of_numbers_without_a_range_is_refused(tmp_path: Path) -> None:
    item = volume_item(tmp_path, np.ones((4, 4, 4), np.float32))
    with pytest.raises(PolyclinicError, match="full-range needs unsigned integers"):
        prepare(item, federation_of(3, item), DataSettings(intensity="full-range"))


@pytest.mark.parametrize("intensity", ["zero-one", "z-score", "percentile"])
@pytest.mark.parametrize("nonzero", [False, True])
@pytest.mark.parametrize("value", [0, 7])
def test_constant_images_become_zero(tmp_path: Path, intensity: Any, nonzero: bool, value: int) -> None:
    item = picture_item(tmp_path, np.full((8, 8), value, np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        image = prepare(item, federation_of(2, item), DataSettings(intensity=intensity, nonzero=nonzero))[0].image
    assert (image == 0).all()


# volumes


def test_volumes_are_turned_to_ras_unless_told_otherwise(tmp_path: Path) -> None:
    array = np.random.default_rng(5).normal(size=(4, 5, 6)).astype(np.float32)
    turned = np.array([[0.0, 0, -3, 0], [-1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1]])  # axes P, S, L
    item = volume_item(tmp_path, array, affine=turned)
    whole = federation_of(3, item)
    ras = prepare(item, whole, DataSettings(intensity="none"))[0]
    np.testing.assert_array_equal(ras.image[0], np.transpose(array, (2, 0, 1))[::-1, ::-1])
    assert ras.spacing == pytest.approx((3, 1, 2))
    own = prepare(item, whole, DataSettings(intensity="none", orientation="PSL"))[0]
    np.testing.assert_array_equal(own.image[0], array)
    with pytest.raises(PolyclinicError, match=r"data\.orientation: 'RRS'"):
        prepare(item, whole, DataSettings(orientation="RRS"))


def test_resampling_to_a_spacing(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(5, dtype=np.float32)[:, None, None], (5, 4, 3)).copy()
    label = 2 * (ramp > 1.5)  # an interpolation would give 1
    item = volume_item(tmp_path, ramp, label, affine=np.diag([2.0, 1, 1, 1]))
    prepared = prepare(item, federation_of(3, item), DataSettings(intensity="none", spacing=(1, 1, 1)))[0]
    np.testing.assert_allclose(prepared.image[0, :, 0, 0], np.arange(9) / 2, atol=1e-5)
    assert prepared.spacing == pytest.approx((1, 1, 1))
    assert prepared.label is not None
    assert set(prepared.label.unique().tolist()) == {0, 2}


def test_a_spacing_needs_files_that_know_theirs(tmp_path: Path) -> None:
    item = picture_item(tmp_path, np.zeros((8, 6), np.uint8))
    with pytest.raises(PolyclinicError, match=r"data\.spacing: the files do not know"):
        prepare(item, federation_of(2, item), DataSettings(spacing=(1, 1)))
    nominal = federation_of(2, item, spacing=(2.0, 0.5))
    prepared = prepare(item, nominal, DataSettings(spacing=(1, 1)))[0]
    assert (prepared.image.shape, prepared.spacing) == ((1, 15, 4), (1.0, 1.0))
    assert prepare(item, nominal, DataSettings(size=(4, 3)))[0].spacing == pytest.approx((4, 1))
    with pytest.raises(PolyclinicError, match=r"data\.spacing: has 3 numbers, but the files have 2 axes"):
        prepare(item, nominal, DataSettings(spacing=(1, 1, 1)))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_bring_their_neighbours_and_the_volumes_statistics(tmp_path: Path, axis: Any) -> None:
    array = np.random.default_rng(6).normal(size=(4, 5, 6, 2)).astype(np.float32)
    label = blobs((4, 5, 6))
    item = volume_item(tmp_path, array, label, affine=np.diag([1.0, 2, 3, 1]))
    whole = federation_of(2, item, channels=2, neighbours=1, sliced=True)
    slices = prepare(item, whole, DataSettings(slice_axis=axis, neighbours=1))
    low, high = array.min(axis=(0, 1, 2)), array.max(axis=(0, 1, 2))
    scaled = np.moveaxis((array - low) / (high - low), (axis, 3), (0, 1))
    count = array.shape[axis]
    assert [one.slice_index for one in slices] == list(range(count))
    for index, one in enumerate(slices):
        around = [max(index - 1, 0), index, min(index + 1, count - 1)]
        np.testing.assert_allclose(one.image, np.concatenate([scaled[i] for i in around]), atol=1e-5)
        np.testing.assert_array_equal(one.label, np.moveaxis(label, axis, 0)[index])
        assert one.spacing == pytest.approx([s for i, s in enumerate((1, 2, 3)) if i != axis])
        assert one.geometry.slice_spacing == pytest.approx(axis + 1)


def test_slices_are_resized_in_their_plane_only(tmp_path: Path) -> None:
    array = np.random.default_rng(7).normal(size=(8, 4, 3)).astype(np.float32)
    item = volume_item(tmp_path, array)
    slices = prepare(item, federation_of(2, item, sliced=True), DataSettings(size=(4, 2), intensity="none"))
    naive = array.reshape(4, 2, 2, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(torch.stack([one.image[0] for one in slices], -1), naive, atol=1e-6)


def test_a_volume_among_pictures_is_refused(tmp_path: Path) -> None:
    item = volume_item(tmp_path, np.zeros((4, 4, 4), np.float32))
    with pytest.raises(PolyclinicError, match="is a volume among 2D images"):
        prepare(item, federation_of(2, item), DataSettings())


# one size for all


def test_auto_takes_the_common_size_or_the_median(tmp_path: Path) -> None:
    def size_for(*shapes: tuple[int, int], multiple: int = 8) -> tuple[int, ...]:
        items = [picture_item(tmp_path, np.zeros(shape, np.uint8), name=f"i{i}") for i, shape in enumerate(shapes)]
        return resolve_size(federation_of(2, *items), DataSettings(), multiple)

    assert size_for((48, 320), (48, 320)) == (48, 320)
    assert size_for((50, 30), (50, 30)) == (48, 32)
    assert size_for((40, 30), (60, 30), (90, 900)) == (64, 32)
    assert size_for((600, 3), (601, 3)) == (256, 16)
    assert size_for((600, 600), (601, 600), multiple=48) == (240, 240)


def test_auto_sees_orientation_spacing_and_slices(tmp_path: Path) -> None:
    affine = np.array([[0, 0, 2.0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    item = volume_item(tmp_path, np.zeros((8, 12, 16), np.float32), affine=affine)
    assert resolve_size(federation_of(3, item), DataSettings(), 4) == (16, 8, 12)
    assert resolve_size(federation_of(2, item, sliced=True), DataSettings(), 4) == (16, 8)
    assert resolve_size(federation_of(2, item, sliced=True), DataSettings(slice_axis=0), 4) == (8, 12)
    assert resolve_size(federation_of(3, item), DataSettings(spacing=(1, 0.5, 1)), 4) == (32, 16, 12)


def test_a_given_size_must_have_the_tasks_axes(tmp_path: Path) -> None:
    item = picture_item(tmp_path, np.zeros((8, 6), np.uint8))
    assert resolve_size(federation_of(2, item), DataSettings(size=(5, 6)), 4) == (5, 6)
    for call in (
        lambda s: resolve_size(federation_of(2, item), s, 4),
        lambda s: prepare(item, federation_of(2, item), s),
    ):
        with pytest.raises(PolyclinicError, match=r"data\.size: has 3 numbers, but the task is 2D"):
            call(DataSettings(size=(8, 8, 8)))
