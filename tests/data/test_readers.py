from __future__ import annotations

from pathlib import Path

import itk
import nibabel
import numpy as np
import pytest
from PIL import Image as PILImage

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item, Task
from polyclinic.data.formats import read_header
from polyclinic.data.readers import read_image, read_label

GREY, COLOUR = Task(("background", "x"), 1, 2), Task(("background", "x"), 3, 2)
VOLUME = Task(("background", "x"), 1, 3)
RAMP = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)  # rows differ from columns: a swap shows


def item(image: Path, label: Path | None = None) -> Item:
    return Item("site", "x", (image,), label, "x")


def saved(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    picture = PILImage.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def nifti(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
def test_rows_stay_rows(tmp_path: Path, suffix: str) -> None:
    image = read_image(item(saved(tmp_path / f"x{suffix}", RAMP)), GREY)
    np.testing.assert_array_equal(image.array[0], RAMP)
    assert image.array.dtype == np.float32
    assert image.affine is None
    assert image.spacing is None


def test_colour_is_channel_first_and_alpha_is_dropped(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (6, 4, 4), dtype=np.uint8)
    image = read_image(item(saved(tmp_path / "x.png", array)), COLOUR)
    np.testing.assert_array_equal(image.array, np.moveaxis(array[..., :3], -1, 0))
    with_alpha = saved(tmp_path / "grey.png", RAMP, "LA")
    np.testing.assert_array_equal(read_image(item(with_alpha), GREY).array[0], RAMP)


def test_jpeg_keeps_its_axes(tmp_path: Path) -> None:
    PILImage.fromarray(np.repeat(RAMP[..., None] * 10, 3, 2)).save(tmp_path / "x.jpg", quality=100, subsampling=0)
    image = read_image(item(tmp_path / "x.jpg"), COLOUR)
    assert np.abs(image.array[0] - RAMP * 10.0).max() < 8


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit(tmp_path: Path, suffix: str) -> None:
    array = RAMP.astype(np.uint16) * 2000
    np.testing.assert_array_equal(read_image(item(saved(tmp_path / f"x{suffix}", array)), GREY).array[0], array)


def test_nominal_spacing_fills_in(tmp_path: Path) -> None:
    task = Task(("background", "x"), 1, 2, spacing=(0.5, 0.25))
    assert read_image(item(saved(tmp_path / "x.png", RAMP)), task).spacing == (0.5, 0.25)


def test_grey_stored_as_colour(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.png", np.repeat(RAMP[..., None], 3, 2))
    assert read_image(item(path), COLOUR).array.shape == (3, 6, 4)
    np.testing.assert_array_equal(read_image(item(path), GREY).array, RAMP[None])
    coloured = saved(tmp_path / "y.png", np.stack([RAMP, RAMP, RAMP * 2], 2))
    with pytest.raises(PolyclinicError, match=r"y\.png: has 3 channels, but the task has 1; convert it to grey"):
        read_image(item(coloured), GREY)


def test_a_grey_picture_is_repeated_for_a_colour_task(tmp_path: Path) -> None:
    image = read_image(item(saved(tmp_path / "x.png", RAMP)), COLOUR)
    np.testing.assert_array_equal(image.array, np.stack([RAMP] * 3))


def test_a_palette_is_colour_in_an_image_and_class_in_a_label(tmp_path: Path) -> None:
    picture = PILImage.fromarray((RAMP > 11).astype(np.uint8), mode="P")
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.save(tmp_path / "x.png")
    both = item(tmp_path / "x.png", tmp_path / "x.png")
    assert read_image(both, COLOUR).array[:, 0, 0].tolist() == [10, 20, 30]
    np.testing.assert_array_equal(read_label(both, GREY), RAMP > 11)


def test_pages_of_a_tiff_are_the_last_axis(tmp_path: Path) -> None:
    pages = [PILImage.fromarray(RAMP + page) for page in range(3)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    assert read_header(tmp_path / "x.tif").shape == (6, 4, 3)
    array = read_image(item(tmp_path / "x.tif"), VOLUME).array
    np.testing.assert_array_equal(array[0], np.stack([RAMP, RAMP + 1, RAMP + 2], 2))


def test_tiff_pages_of_different_sizes_are_refused(tmp_path: Path) -> None:
    PILImage.fromarray(RAMP).save(tmp_path / "x.tif", save_all=True, append_images=[PILImage.fromarray(RAMP[:3])])
    with pytest.raises(PolyclinicError, match="pages differ in size"):
        read_image(item(tmp_path / "x.tif"), VOLUME)


def test_nifti_keeps_axes_affine_and_channels(tmp_path: Path) -> None:
    affine = np.array([[-2.0, 0, 0, 9], [0, 0, 3, 8], [0, 1.5, 0, 7], [0, 0, 0, 1]])
    array = np.random.default_rng(1).normal(size=(4, 5, 6, 2)).astype(np.float32)
    image = read_image(item(nifti(tmp_path / "x.nii.gz", array, affine)), Task(("background", "x"), 2, 3))
    np.testing.assert_array_equal(image.array, np.moveaxis(array, -1, 0))
    np.testing.assert_allclose(image.affine, affine)
    assert image.spacing == pytest.approx((2, 1.5, 3))


def test_mha_lies_where_the_same_nifti_lies(tmp_path: Path) -> None:
    array = np.random.default_rng(2).integers(0, 99, (4, 5, 6)).astype(np.int16)
    volume = itk.image_from_array(np.ascontiguousarray(array.T))
    volume.SetSpacing([1.0, 2.0, 3.0])
    volume.SetOrigin([10.0, 20.0, 30.0])
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    volume.SetDirection(itk.matrix_from_array(turn))
    itk.imwrite(volume, str(tmp_path / "x.mha"))
    itk.imwrite(volume, str(tmp_path / "x.nii"))
    mha, nii = (read_image(item(tmp_path / f"x.{suffix}"), VOLUME) for suffix in ("mha", "nii"))
    np.testing.assert_array_equal(mha.array[0], array)
    np.testing.assert_array_equal(nii.array[0], array)
    np.testing.assert_allclose(mha.affine, nii.affine, atol=1e-5)
    assert mha.spacing == pytest.approx((1, 2, 3))
    assert read_header(tmp_path / "x.mha").shape == (4, 5, 6)


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
            read_image(item(path), GREY)


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    for name in ("x.png", "x.nii.gz", "x.mha"):
        with pytest.raises(PolyclinicError, match=f"{name}: cannot be read"):
            read_image(item(tmp_path / name), GREY)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    array = np.zeros((3, 3, 3), np.float32)
    array[1, 1, 1] = value
    with pytest.raises(PolyclinicError, match="holds NaN or infinite values"):
        read_image(item(nifti(tmp_path / "x.nii", array)), VOLUME)


def test_a_singular_affine_is_refused(tmp_path: Path) -> None:
    volume = nibabel.Nifti1Image(np.zeros((3, 3, 3), np.float32), None)
    volume.header.set_sform(np.diag([1.0, 1, 0, 1]), code=1)
    nibabel.save(volume, tmp_path / "x.nii")
    with pytest.raises(PolyclinicError, match="affine is singular"):
        read_image(item(tmp_path / "x.nii"), VOLUME)


def test_channels_of_different_sizes_are_refused(tmp_path: Path) -> None:
    files = (saved(tmp_path / "a.png", RAMP), saved(tmp_path / "b.png", RAMP[:3]))
    with pytest.raises(PolyclinicError, match=r"b\.png: has the size 3x4, but a\.png has 6x4"):
        read_image(Item("site", "x", files, None, "x"), Task(("background", "x"), 2, 2))


def labelled(tmp_path: Path, array: np.ndarray) -> Item:
    return item(saved(tmp_path / "x.png", RAMP), saved(tmp_path / "label.png", array))


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
    halves = item(nifti(tmp_path / "x.nii", np.zeros((2, 2, 2))), nifti(tmp_path / "y.nii", np.full((2, 2, 2), 0.5)))
    with pytest.raises(PolyclinicError, match=r"undeclared label values 0\.5"):
        read_label(halves, VOLUME)


def test_a_label_must_lie_on_its_image(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"label has the size 4x6, but its image x\.png has 6x4"):
        read_label(labelled(tmp_path, np.zeros((4, 6), np.uint8)), GREY)
    with pytest.raises(PolyclinicError, match="channels that differ"):
        read_label(labelled(tmp_path, np.stack([RAMP, RAMP, RAMP + 1], 2)), GREY)
    flat = np.zeros((3, 3, 3), np.uint8)
    flipped = item(nifti(tmp_path / "x.nii", flat), nifti(tmp_path / "y.nii", flat, np.diag([-1.0, 1, 1, 1])))
    with pytest.raises(PolyclinicError, match="label's axes are LAS, but those of its image are RAS"):
        read_label(flipped, VOLUME)
