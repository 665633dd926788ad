from __future__ import annotations

from pathlib import Path

import itk
import numpy as np
import pytest

from data_support import file_item, nifti, saved
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item, Task
from polyclinic.data.readers import read_image, read_label

GREY, COLOUR = Task(("background", "x"), 1, 2), Task(("background", "x"), 3, 2)
VOLUME = Task(("background", "x"), 1, 3)
RAMP = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)  # rows differ from columns: a swap shows


def test_nominal_spacing_fills_in(tmp_path: Path) -> None:
    task = Task(("background", "x"), 1, 2, spacing=(0.5, 0.25))
    assert read_image(file_item(saved(tmp_path / "x.png", RAMP)), task).spacing == (0.5, 0.25)


def test_grey_stored_as_colour(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.png", np.repeat(RAMP[..., None], 3, 2))
    assert read_image(file_item(path), COLOUR).array.shape == (3, 6, 4)
    np.testing.assert_array_equal(read_image(file_item(path), GREY).array, RAMP[None])
    coloured = saved(tmp_path / "y.png", np.stack([RAMP, RAMP, RAMP * 2], 2))
    with pytest.raises(PolyclinicError, match=r"y\.png: has 3 channels, but the task has 1; convert it to grey"):
        read_image(file_item(coloured), GREY)


def test_a_grey_picture_is_repeated_for_a_colour_task(tmp_path: Path) -> None:
    image = read_image(file_item(saved(tmp_path / "x.png", RAMP)), COLOUR)
    np.testing.assert_array_equal(image.array, np.stack([RAMP] * 3))


@pytest.mark.parametrize("name", ["x.png", "x.nii.gz", "x.nii", "x.mha", "x.tif"])
def test_junk_and_truncated_files_get_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    array = np.random.default_rng(3).integers(0, 99, (40, 40, 8)).astype(np.uint8)
    if name.endswith((".png", ".tif")):
        saved(path, array[..., 0])
    elif name.endswith(".mha"):
        itk.imwrite(itk.image_from_array(array), str(path))
    else:
        nifti(path, array)
    whole = path.read_bytes()
    for content in (b"junk", b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(PolyclinicError, match=rf"{name}: cannot be read as {name[2:]} \(.+\); replace the file"):
            read_image(file_item(path), GREY)


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    for name in ("x.png", "x.nii.gz", "x.mha"):
        with pytest.raises(PolyclinicError, match=f"{name}: cannot be read"):
            read_image(file_item(tmp_path / name), GREY)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    array = np.zeros((3, 3, 3), np.float32)
    array[1, 1, 1] = value
    with pytest.raises(PolyclinicError, match="holds NaN or infinite values"):
        read_image(file_item(nifti(tmp_path / "x.nii", array)), VOLUME)


def test_channels_of_different_sizes_are_refused(tmp_path: Path) -> None:
    files = (saved(tmp_path / "a.png", RAMP), saved(tmp_path / "b.png", RAMP[:3]))
    with pytest.raises(PolyclinicError, match=r"b\.png: has the size 3x4, but a\.png has 6x4"):
        read_image(Item("site", "x", files, None, "x"), Task(("background", "x"), 2, 2))


def labelled(tmp_path: Path, array: np.ndarray) -> Item:
    return file_item(saved(tmp_path / "x.png", RAMP), saved(tmp_path / "label.png", array))


def test_labels_of_0_and_255_are_binary(tmp_path: Path) -> None:
    mask = (RAMP > 7).astype(np.uint8)
    for array in (mask, mask * 255, np.repeat(mask[..., None] * 255, 3, 2), mask.astype(bool)):
        label = read_label(labelled(tmp_path, array), GREY)
        np.testing.assert_array_equal(label, mask)
        assert label.dtype == np.uint8
    assert read_label(labelled(tmp_path, np.full_like(RAMP, 255)), GREY).all()


def test_undeclared_values_are_listed(tmp_path: Path) -> None:
    three = Task(("background", "x", "y"), 1, 2)
    with pytest.raises(PolyclinicError, match=r"label\.png: holds the undeclared label values 3, 255; expected 0 to 2"):
        read_label(labelled(tmp_path, np.where(RAMP > 7, 255, RAMP % 4).astype(np.uint8)), three)
    with pytest.raises(PolyclinicError, match="undeclared label values 255"):
        read_label(labelled(tmp_path, np.where(RAMP > 7, 255, RAMP % 2).astype(np.uint8)), GREY)
    halves = file_item(
        nifti(tmp_path / "x.nii", np.zeros((2, 2, 2))), nifti(tmp_path / "y.nii", np.full((2, 2, 2), 0.5))
    )
    with pytest.raises(PolyclinicError, match=r"undeclared label values 0\.5"):
        read_label(halves, VOLUME)


def test_a_label_must_lie_on_its_image(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"label has the size 4x6, but its image x\.png has 6x4"):
        read_label(labelled(tmp_path, np.zeros((4, 6), np.uint8)), GREY)
    with pytest.raises(PolyclinicError, match="channels that differ"):
        read_label(labelled(tmp_path, np.stack([RAMP, RAMP, RAMP + 1], 2)), GREY)
    flat = np.zeros((3, 3, 3), np.uint8)
    flipped = file_item(nifti(tmp_path / "x.nii", flat), nifti(tmp_path / "y.nii", flat, np.diag([-1.0, 1, 1, 1])))
    with pytest.raises(PolyclinicError, match="label's axes are LAS, but those of its image are RAS"):
        read_label(flipped, VOLUME)
