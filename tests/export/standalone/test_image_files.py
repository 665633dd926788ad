"""Files are listed, read and written as polyclinic does it."""

from __future__ import annotations

from pathlib import Path

import itk
import nibabel
import numpy as np
import pytest
from PIL import Image

from polyclinic.data.federation import Item, Task
from polyclinic.data.formats import read_header
from polyclinic.data.prediction_inputs import list_images as own_list
from polyclinic.data.readers import read_image as own_read
from polyclinic.data.writers import write_label
from polyclinic.export.standalone.image_files import ImageFiles, list_images, read_file, read_image, write_mask

RNG = np.random.default_rng(0)
AFFINE = np.array([[0, -1.5, 0, 4], [1, 0, 0, -2], [0, 0, 2, 7], [0, 0, 0, 1.0]])


def picture(mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(RNG.integers(0, 4000, (6, 9)).astype(np.uint16))
    base = Image.fromarray(RNG.integers(0, 256, (6, 9, 3), np.uint8))
    return base.convert(mode)


def write_itk(path: Path) -> None:
    image = itk.image_from_array(RNG.random((4, 5, 6)).astype(np.float32))
    image.SetSpacing([1.0, 2.0, 3.0])
    image.SetOrigin([3.0, -4.0, 5.0])
    image.SetDirection(itk.matrix_from_array(np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])))
    itk.imwrite(image, str(path))


@pytest.mark.parametrize(("name", "mode", "channels"), [
    ("a.png", "L", 1), ("a.png", "RGB", 3), ("a.png", "RGBA", 3), ("a.png", "LA", 1), ("a.png", "P", 3),
    ("a.png", "L", 3), ("a.png", "I;16", 1), ("a.jpg", "RGB", 3), ("a.bmp", "RGB", 3), ("a.tif", "CMYK", 3),
])  # fmt: skip
def test_pictures_are_read_the_same(name: str, mode: str, channels: int, tmp_path: Path) -> None:
    picture(mode).save(tmp_path / name)
    same(tmp_path / name, channels, 2)


def same(path: Path, channels: int, dims: int) -> None:
    wanted = own_read(Item("", "a", (path,), None, "a"), Task(("background", "b"), channels, dims))
    found = read_image(ImageFiles("a", (path,)), channels)
    np.testing.assert_array_equal(found.voxels, wanted.array)
    assert found.highest == wanted.highest
    if wanted.affine is None:
        assert found.affine is None
    else:
        np.testing.assert_allclose(found.affine, wanted.affine)  # type: ignore[arg-type]


def test_volumes_are_read_the_same(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(RNG.random((4, 5, 6)), AFFINE), tmp_path / "a.nii.gz")
    nibabel.save(nibabel.Nifti1Image(RNG.random((4, 5, 6, 2)), AFFINE), tmp_path / "b.nii")
    write_itk(tmp_path / "c.mha")
    write_itk(tmp_path / "d.nrrd")
    pages = [picture("L") for _ in range(3)]
    pages[0].save(tmp_path / "e.tif", save_all=True, append_images=pages[1:])
    for name, channels in (("a.nii.gz", 1), ("b.nii", 2), ("c.mha", 1), ("d.nrrd", 1), ("e.tif", 1)):
        same(tmp_path / name, channels, 3)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.mha", "a.png", "a.jpg", "a.tif"])
def test_masks_are_written_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(RNG.random((4, 5, 6)), AFFINE), path)
    elif name.endswith(".mha"):
        write_itk(path)
    else:
        picture("L").save(path)
    mask = RNG.integers(0, 3, read_header(path).shape, np.uint8)
    wanted = write_label(tmp_path / "own" / "a", mask, Item("", "a", (path,), None, "a"))
    found = write_mask(tmp_path / "other", mask, ImageFiles("a", (path,)))
    assert found.name == wanted.name
    for own, other in zip(read_file(wanted), read_file(found), strict=True):
        np.testing.assert_array_equal(own, other)
    with pytest.raises(ValueError, match="is there already"):
        write_mask(tmp_path / "other", mask, ImageFiles("a", (path,)))


@pytest.mark.parametrize("names", [
    ("a.png", "b.png"), ("a_0000.png", "a_0001.png", "b_0000.png", "b_0001.png"), ("a_0000.png", "b_0000.png"),
    ("a_0000.png", "b.png"),
])  # fmt: skip
@pytest.mark.parametrize("channels", [1, 2])
def test_images_are_listed_the_same(names: tuple[str, ...], channels: int, tmp_path: Path) -> None:
    for name in names:
        picture("L").save(tmp_path / name)
    for path in (tmp_path, tmp_path / names[0]):
        wanted = [(one.name, one.images) for one in own_list(path, channels)]
        assert [(one.name, one.paths) for one in list_images(path, channels, False)] == wanted


def test_channels_that_are_missing_are_zeros_or_an_error(tmp_path: Path) -> None:
    for name in ("a_0000.png", "a_0001.png", "b_0001.png"):
        picture("L").save(tmp_path / name)
    _, lacking = list_images(tmp_path, 2, True)
    read = read_image(lacking, 2).voxels
    assert not read[0].any()
    assert read[1].any()
    with pytest.raises(ValueError, match=r"b: has the channels \[1\], but the model needs 2"):
        list_images(tmp_path, 2, False)


def test_what_is_no_image_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        list_images(tmp_path / "none", 1, False)
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match="holds no images"):
        list_images(tmp_path, 1, False)
    picture("RGB").save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="has 3 channels, but the model has 1"):
        read_image(ImageFiles("a", (tmp_path / "a.png",)), 1)
