"""Intensities by a site's own mean and deviation, against NumPy over all voxels at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_support import federation_of, picture_item, volume_item
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.build_imageset import build_imageset
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_intensity import (
    SiteIntensity,
    intensity_of,
    kept_intensity,
    moments_of,
    read_intensity,
    standardised,
)
from polyclinic.data.splits import Split
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.recipe import DataSettings
from polyclinic.runs.plan import site_data


def settings_of(**own: Any) -> DataSettings:
    return DataSettings.model_validate({"intensity": "site", "cache": "off", **own})


def numpy_statistics(arrays: list[np.ndarray], scalar: bool, nonzero: bool) -> tuple[list[float], list[float]]:
    """Mean and deviation of all voxels together; ``arrays`` are ``(channel, *spatial)``."""
    groups = [np.concatenate([array[c].ravel() for array in arrays]) for c in range(len(arrays[0]))]
    groups = [np.concatenate(groups)] if scalar else groups
    groups = [group[group != 0] if nonzero else group for group in groups]
    return [float(group.mean()) for group in groups], [float(group.std()) for group in groups]


@given(
    st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(0, 99),
    st.sampled_from([0.0, 100.0, -1000.0]),
)  # fmt: skip
def test_mean_and_deviation_are_those_of_all_voxels_together(
    images: int, channels: int, scalar: bool, nonzero: bool, seed: int, offset: float
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(offset, 5, (channels, *rng.integers(2, 6, 2))) for _ in range(images)]
    for array in arrays:
        array[:, 0] = 0
    settings = settings_of(intensity_statistics="scalar" if scalar else "channel", nonzero=nonzero)
    moments = [moments_of(torch.from_numpy(array), nonzero) for array in arrays]
    found = intensity_of(moments, settings)
    mean, deviation = numpy_statistics(arrays, scalar, nonzero)
    assert found.mean == pytest.approx(mean)
    assert found.deviation == pytest.approx(deviation)
    assert found.images == images
    assert found == intensity_of(moments[::-1], settings), "the order of images does not matter, to the last bit"


def test_constant_and_missing_voxels_are_not_divided_by_zero() -> None:
    settings = settings_of()
    constant = intensity_of([moments_of(torch.full((1, 4, 4), 1234.5678), False)], settings)
    assert constant.deviation == (1.0,)
    assert constant.scaled(torch.full((1, 4, 4), 1234.5678)).abs().max() < 1e-3
    assert intensity_of([moments_of(torch.zeros(1, 4, 4), True)], settings) == SiteIntensity((0.0,), (1.0,), False, 1)
    assert intensity_of([], settings).deviation == (1.0,)


def coloured(folder: Path, sizes: list[tuple[int, int]], seed: int = 0) -> tuple[list[Any], list[np.ndarray]]:
    """Pictures of a site and their values from 0 to 1 as ``(channel, row, column)``."""
    rng, items, arrays = np.random.default_rng(seed), [], []
    for number, size in enumerate(sizes):
        array = rng.integers(0, 120 + 30 * number, (*size, 3)).astype(np.uint8)
        array[: size[0] // 2, :2] = 0
        label = np.zeros(size, np.uint8)
        label[1:3, 1:3] = 1
        items.append(picture_item(folder, array, label, f"p{number}"))
        arrays.append(np.moveaxis(array, -1, 0) / 255)
    return items, arrays


def part_of(items: list[Any], train: int) -> ProtocolPart:
    split = {("a", item.name): "train" if number < train else "test" for number, item in enumerate(items)}
    return ProtocolPart("all", Split(split), ("a",))


@pytest.mark.parametrize("statistics", ["scalar", "channel"])
@pytest.mark.parametrize("nonzero", [False, True])
@pytest.mark.parametrize("sizes", [[(9, 7)] * 4, [(9, 7), (6, 8), (12, 5), (5, 5)]])
def test_all_images_of_a_site_are_scaled_by_the_training_images_alone(
    statistics: str, nonzero: bool, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    items, arrays = coloured(tmp_path, sizes)
    federation = federation_of(2, *items, channels=3)
    settings = settings_of(intensity_statistics=statistics, nonzero=nonzero)
    data = site_data("a", build_imageset(items, federation, settings), part_of(items, train=2), tmp_path / "kept")
    mean, deviation = numpy_statistics(arrays[:2], statistics == "scalar", nonzero)
    expected = []
    for array in arrays:
        shape = (-1, 1, 1)
        scaled = (array - np.reshape(mean, shape)) / np.reshape(deviation, shape)
        expected.append(np.where(array != 0, scaled, 0) if nonzero else scaled)
    for number, wanted in enumerate(expected):
        np.testing.assert_allclose(data.images[number][0], wanted, atol=1e-5)  # type: ignore[index]
        batch = data.images.batch(torch.tensor([number]))[0]
        np.testing.assert_allclose(batch[0], wanted, atol=1e-5)
        np.testing.assert_allclose(data.images.images[number], wanted, atol=1e-5)  # type: ignore[attr-defined]
    # A patch as large as the largest image shows it whole, in the middle of zeros: the site's mean.
    patches, _ = data.images.patches(torch.arange(4), (12, 8), torch.Generator().manual_seed(0))
    for patch, wanted in zip(patches, expected, strict=True):
        assert float(patch.abs().sum()) == pytest.approx(float(np.abs(wanted).sum()), rel=1e-4)
    chosen = torch.tensor([False, True, False, True])
    one = data.images.subset(chosen)  # type: ignore[attr-defined]
    np.testing.assert_allclose(one[1][0], expected[3], atol=1e-5)
    kept = json.loads((tmp_path / "kept" / "intensity.json").read_text())
    assert kept["mean"] == pytest.approx(mean)
    assert kept["deviation"] == pytest.approx(deviation)
    assert kept["images"] == 2


def test_parts_with_other_training_images_share_what_is_cached(tmp_path: Path) -> None:
    items, _ = coloured(tmp_path, [(6, 6)] * 4)
    federation, settings = federation_of(2, *items, channels=3), settings_of(cache=str(tmp_path / "cache"))
    found = []
    for train in (1, 3):
        images = build_imageset(items, federation, settings)
        found.append(site_data("a", images, part_of(items, train)).images.batch(torch.arange(4))[0])
        per_channel = build_imageset(items, federation, settings_of(
            cache=str(tmp_path / "cache"), intensity_statistics="channel", label_seed=3, labelled=1
        ))  # fmt: skip
        assert per_channel.moments is not None
        assert len(per_channel.moments.of(["p0"]).mean) == 3
    assert not torch.allclose(found[0], found[1])
    assert float(found[1][:3].mean()) == pytest.approx(0, abs=1e-5)
    assert float(found[1][:3].std(correction=0)) == pytest.approx(1, abs=1e-4)
    entries = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").rglob("*-*") if path.is_file())
    assert entries.count("images") == 1


@pytest.mark.parametrize("neighbours", [0, 1])
def test_slices_of_volumes_are_scaled_as_the_volume_that_predict_prepares(neighbours: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(300 * (n + 1), 20, (6, 5, 4)).astype(np.float32) for n in range(2)]
    items = [volume_item(tmp_path, array, name=f"v{n}") for n, array in enumerate(arrays)]
    federation = federation_of(2, *items, neighbours=neighbours, sliced=True)
    settings = settings_of(size=(8, 8))
    data = site_data("a", build_imageset(items, federation, settings), part_of(items, train=1))
    found = data.images.batch(torch.arange(8))[0]
    known = SiteIntensity((float(arrays[0].mean()),), (float(arrays[0].std()),), False, 1)
    scaled = replace(federation, intensity={"a": known})
    expected = torch.stack([one.image for item in items for one in prepare(item, scaled, settings)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert prepare(items[0], scaled, settings)[0].moments is None
    cached = build_imageset(items, scaled, settings)
    assert cached.moments is None
    torch.testing.assert_close(cached.batch(torch.arange(8))[0], expected)


def test_a_channel_without_a_file_stays_zero_and_does_not_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = [rng.normal(50, 5, (4, 4, 4)).astype(np.float32) for _ in range(2)]
    whole = replace(volume_item(tmp_path, arrays[0], name="w0"), name="whole")
    second = volume_item(tmp_path, arrays[1], name="w1")
    whole = replace(whole, images=(*whole.images, *second.images), places=(0, 1))
    half = replace(volume_item(tmp_path, arrays[0], name="h"), places=(1,))
    federation = federation_of(3, whole, half, channels=2)
    federation = replace(federation, task=replace(federation.task, zero_fill=True))
    data = site_data("a", build_imageset([whole, half], federation, settings_of()), part_of([whole, half], 2))
    voxels = np.stack([*arrays, arrays[0]])
    found = data.images.batch(torch.arange(2))[0]
    assert not found[1, 0].any()
    np.testing.assert_allclose(found[1, 1], (arrays[0] - voxels.mean()) / voxels.std(), atol=1e-3)


def test_an_unseen_site_is_scaled_by_all_of_its_own_images(tmp_path: Path) -> None:
    items, _ = coloured(tmp_path, [(5, 5)] * 3)
    part = replace(part_of(items, 0), train_sites=(), unseen="a")
    data = site_data("a", build_imageset(items, federation_of(2, *items, channels=3), settings_of()), part)
    found = data.images.batch(torch.arange(3))[0]
    assert (float(found.mean()), float(found.std(correction=0))) == pytest.approx((0, 1), abs=1e-4)


def test_images_whose_site_is_not_settled_are_never_given(tmp_path: Path) -> None:
    items, _ = coloured(tmp_path, [(5, 5)] * 2)
    images = build_imageset(items, federation_of(2, *items, channels=3), settings_of())
    for read in (lambda: images[0], lambda: images.images, lambda: images.batch(torch.arange(2))):
        with pytest.raises(ValueError, match="not settled"):
            read()


def test_pictures_of_8_and_16_bits_mean_the_same_and_volumes_keep_their_numbers(tmp_path: Path) -> None:
    from PIL import Image

    grey = np.arange(25, dtype=np.uint8).reshape(5, 5) * 10
    items = [picture_item(tmp_path, grey, name="small")]
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "large.png")
    items.append(replace(items[0], name="large", images=(tmp_path / "large.png",)))
    low, high = (prepare(item, federation_of(2, item), settings_of())[0].image for item in items)
    torch.testing.assert_close(low, high)
    for kind in (np.uint16, np.int16):
        item = volume_item(tmp_path, np.full((3, 3, 3), 700, kind), name=f"v{np.dtype(kind)}")
        assert float(prepare(item, federation_of(3, item), settings_of())[0].image.max()) == 700


def test_numbers_are_kept_and_must_not_change_once_a_run_has_begun(tmp_path: Path) -> None:
    first = SiteIntensity((1.0, 2.0), (0.5, 0.25), True, 7)
    assert kept_intensity(tmp_path / "s", first, fixed=True) == first
    assert read_intensity(tmp_path / "s") == first
    rounded = replace(first, mean=(1.0 + 1e-9, 2.0))
    assert kept_intensity(tmp_path / "s", rounded, fixed=True) == first, "what the run began with"
    other = replace(first, mean=(1.1, 2.0))
    for changed in (other, replace(first, images=8), replace(first, deviation=(0.5, 0.3))):
        with pytest.raises(PolyclinicError, match=r"intensity\.json: .* have changed since this run started"):
            kept_intensity(tmp_path / "s", changed, fixed=True)
    assert kept_intensity(tmp_path / "s", other, fixed=False) == other
    assert read_intensity(tmp_path / "s") == other
    with pytest.raises(PolyclinicError, match=r"intensity\.json: is not there"):
        read_intensity(tmp_path / "nobody")


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"mean": [1], "deviation": [0], "nonzero": false, "images": 1}',
     '{"mean": [NaN], "deviation": [1], "nonzero": false, "images": 1}', '{"mean": "x", "deviation": [1]}',
     '{"mean": [1, 2], "deviation": [1], "nonzero": false, "images": 1}'],
)  # fmt: skip
def test_a_file_with_nonsense_gets_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "intensity.json").write_text(text)
    with pytest.raises(PolyclinicError, match=r"intensity\.json: expected the mean and deviation"):
        read_intensity(tmp_path)


def test_standardised_is_the_formula_for_every_row_and_channel() -> None:
    images, mean, deviation = torch.rand(2, 3, 4, 5), torch.rand(2, 3), 1 + torch.rand(2, 3)
    images[0, 0, 0, 0] = 0
    for nonzero in (False, True):
        found = standardised(images, mean, deviation, nonzero)
        for b, c, y, x in np.ndindex(*images.shape):
            value = float(images[b, c, y, x])
            wanted = 0.0 if nonzero and value == 0 else (value - float(mean[b, c])) / float(deviation[b, c])
            assert float(found[b, c, y, x]) == pytest.approx(wanted, abs=1e-5)
