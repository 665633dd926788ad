"""Pictures of a gallery: orientation by a marked voxel, chosen slices, colours of nested regions, PNG files."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.preprocessing import Geometry
from polyclinic.recipe import DataSettings
from polyclinic.runs.gallery_pictures import (
    MOST_SLICES,
    PALETTE,
    choose_slices,
    colours,
    image_png,
    judged_numbers,
    mask_png,
    painted_regions,
    planes_of,
    shown_intensities,
)


def geometry(shape: tuple[int, ...], steps: tuple[float, ...], axis: int | None = None, known: bool = True) -> Geometry:
    affine = np.diag([*steps, *[1.0] * (4 - len(steps))])
    return Geometry(shape, affine, shape, affine, axis, known)


@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, -1), (-1, -1, -1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_volume_is_turned_as_radiologists_look_at_it(signs: tuple[int, ...], axis: int) -> None:
    """A voxel at the patient's right, front and head lies at the upper left of every plane."""
    shape = (4, 5, 6)
    steps = tuple((3.0 if number == axis else 1.0) * sign for number, sign in enumerate(signs))
    volume = np.zeros(shape)
    corner = tuple(size - 1 if sign > 0 else 0 for size, sign in zip(shape, signs, strict=True))  # right, front, head
    volume[corner] = 1
    planes = planes_of(geometry(shape, steps), oriented=True)
    assert planes.axis == axis
    picture = planes.of(volume, corner[axis])
    # A sagittal plane looks to the left: its front is on the left.
    assert picture[0, 0] == 1
    assert picture.sum() == 1
    rows, columns = {0: (2, 1), 1: (2, 0), 2: (1, 0)}[axis]
    assert picture.shape == (shape[rows], shape[columns])


def test_axes_that_are_swapped_in_the_file_are_swapped_back() -> None:
    affine = np.array([[0, 1.0, 0, 0], [1.0, 0, 0, 0], [0, 0, 4.0, 0], [0, 0, 0, 1]])  # axes point to A, R and S
    planes = planes_of(Geometry((4, 5, 6), affine, (4, 5, 6), affine, None, True), oriented=True)
    volume = np.zeros((4, 5, 6))
    volume[3, 0, 2] = 1  # front, and left
    picture = planes.of(volume, 2)
    assert picture.shape == (4, 5)
    assert picture[0, 4] == 1


def test_without_known_axes_nothing_is_turned() -> None:
    volume = np.arange(24).reshape(2, 3, 4)
    planes = planes_of(geometry((2, 3, 4), (1, 1, 1)), oriented=False)
    assert planes.axis == 2
    assert (planes.of(volume, 1) == volume[:, :, 1]).all()
    picture = np.arange(6).reshape(2, 3)
    assert (planes_of(geometry((2, 3), (1, 1)), oriented=False).of(picture, 0) == picture).all()


def test_slices_of_a_2d_task_are_kept_whatever_the_spacing() -> None:
    assert planes_of(geometry((4, 5, 6), (1, 1, 3), axis=0), oriented=True).axis == 0
    assert planes_of(geometry((4, 5, 6), (9, 1, 3), known=False), oriented=False).axis == 2


def test_pixels_are_square_and_no_more_than_a_page_needs() -> None:
    assert planes_of(geometry((40, 30), (1, 2)), oriented=False).size == (40, 60)
    assert planes_of(geometry((1000, 500), (1, 1)), oriented=False).size == (256, 128)
    assert planes_of(geometry((1000, 1), (1, 1)), oriented=False).size == (256, 1)
    assert planes_of(geometry((1000, 500, 9), (1, 1, 5)), oriented=False).size == (192, 96)


def test_slices_are_few_spread_and_have_the_fullest() -> None:
    draws = random.Random(0)
    for _ in range(200):
        count = draws.randint(1, 90)
        truth = np.zeros((count, 3, 5), dtype=np.uint8)
        for index in range(draws.randint(0, count), draws.randint(0, count)):
            truth[index].flat[: draws.randint(0, 15)] = 1
        indices, start = choose_slices(truth, 0)
        areas = truth.any(axis=0).sum() and [int(plane.sum()) for plane in truth]
        assert indices == sorted(set(indices))
        assert indices[0] >= 0
        assert indices[-1] < count
        assert len(indices) == min(count, MOST_SLICES) or not truth.any()
        if truth.any():
            assert areas[indices[start]] == max(areas)  # type: ignore[index]
            assert any(truth[index].any() for index in indices)


def test_of_many_slices_most_have_foreground_and_some_have_none() -> None:
    truth = np.zeros((4, 4, 100), dtype=np.uint8)
    truth[1, 1, 30:70] = 1
    indices, _ = choose_slices(truth, 2)
    inside = [index for index in indices if 30 <= index < 70]
    assert (len(indices), len(inside)) == (24, 16)
    assert (inside[0], inside[-1], indices[0], indices[-1]) == (30, 69, 0, 99)


def test_an_empty_truth_shows_the_middle_and_slices_around_it() -> None:
    indices, start = choose_slices(np.zeros((2, 2, 50), dtype=np.uint8), 2)
    assert indices[start] == 25
    assert len(indices) == MOST_SLICES
    assert choose_slices(np.zeros((2, 2), dtype=np.uint8), None) == ([0], 0)


def test_of_nested_regions_the_innermost_is_painted() -> None:
    regions = (("whole", (1, 2, 3)), ("core", (1, 3)), ("enhancing", (3,)))
    task = Task(("background", "necrosis", "oedema", "enhancing"), 1, 3, regions=regions)
    assert judged_numbers(task)[:4].tolist() == [0, 2, 1, 3]
    assert judged_numbers(Task(("background", "a", "b"), 1, 2))[:4].tolist() == [0, 1, 2, 0]
    partly = Task(("background", "a", "b"), 1, 2, regions=(("only", (2,)),))
    assert judged_numbers(partly)[:3].tolist() == [0, 0, 1]
    masks = np.array([[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0]], dtype=bool)
    assert painted_regions(masks, task).tolist() == [1, 2, 3, 0]
    equal = Task(("background", "a", "b", "c"), 1, 2, regions=(("left", (1, 2)), ("right", (2, 3))))
    both = painted_regions(np.array([[True], [True]]), equal)
    assert both.tolist() == [judged_numbers(equal)[2]] == [2], "of two with equally many classes the later one"


def test_a_mask_has_the_colours_of_its_classes_and_nothing_elsewhere() -> None:
    numbers = np.array([[0, 1], [2, 0]], dtype=np.uint8)
    with Image.open(io.BytesIO(mask_png(numbers, (4, 4), colours(2)))) as picture:
        assert (picture.mode, picture.size) == ("P", (4, 4))
        pixels = np.asarray(picture.convert("RGBA"))
    expected = {0: (0, 0, 0, 0), **{n + 1: (*bytes.fromhex(PALETTE[n][1:]), 255) for n in (0, 1)}}
    for row in range(4):
        for column in range(4):
            assert tuple(pixels[row, column]) == expected[int(numbers[row // 2, column // 2])]
    assert len(set(PALETTE)) == len(PALETTE)
    assert colours(len(PALETTE) + 1)[-1] == PALETTE[0]


def written(folder: Path, array: np.ndarray, channels: int) -> tuple[Item, Federation]:
    Image.fromarray(array).save(folder / "x.png")
    item = Item("a", "x", (folder / "x.png",), None, "x")
    return item, Federation("f", Task(("background", "disc"), channels, 2), {"a": (item,)}, folder)


def test_a_colour_picture_keeps_its_colours_whatever_the_network_sees(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(40, 90, (8, 6, 3), dtype=np.uint8)
    item, federation = written(tmp_path, array, 3)
    shown = shown_intensities(item, federation, DataSettings(intensity="z-score"))
    assert (shown == array).all()
    with Image.open(io.BytesIO(image_png(shown, (8, 6)))) as picture:
        assert picture.mode == "RGB"
        assert (np.asarray(picture) == array).all()


def test_grey_goes_from_black_to_white_between_percentiles(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(100, 120, (40, 40), dtype=np.uint8)
    array[0, 0] = 255  # one bright pixel must not make everything else dark
    shown = shown_intensities(*written(tmp_path, array, 1), DataSettings())
    low, high = np.percentile(array.astype(float), (0.5, 99.5))
    naive = np.array([[min(max((float(v) - low) / (high - low), 0), 1) * 255 for v in line] for line in array])
    assert np.abs(shown - naive).max() <= 0.5 + 1e-4
    constant = shown_intensities(*written(tmp_path, np.full((4, 4), 7, np.uint8), 1), DataSettings())
    assert not constant.any()


def test_neighbouring_slices_and_further_channels_are_not_shown(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    item, federation = written(tmp_path, array, 3)
    between = Federation("f", Task(("background", "disc"), 3, 2, neighbours=1), federation.sites, tmp_path)
    assert shown_intensities(item, between, DataSettings()).shape == (8, 8)
