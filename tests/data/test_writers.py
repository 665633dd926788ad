from __future__ import annotations

from pathlib import Path

import itk
import nibabel
import numpy as np
import pytest
from PIL import Image as PILImage

from polyclinic.data.federation import Item, Task
from polyclinic.data.formats import read_array, read_header
from polyclinic.data.readers import read_label
from polyclinic.data.writers import write_label

MASK = (np.arange(6 * 4).reshape(6, 4) % 3).astype(np.uint8)
SOLID = (np.arange(6 * 4 * 5).reshape(6, 4, 5) % 3).astype(np.uint8)


def item(path: Path, label: Path | None = None) -> Item:
    return Item("a", "x", (path,), label, "x")


@pytest.mark.parametrize(
    ("suffix", "written"), [(".png", ".png"), (".tif", ".tif"), (".jpg", ".png"), (".bmp", ".png")]
)
def test_pictures_keep_rows_as_rows(tmp_path: Path, suffix: str, written: str) -> None:
    image = tmp_path / f"x{suffix}"
    PILImage.fromarray(np.zeros((6, 4, 3), np.uint8)).save(image)
    path = write_label(tmp_path / "out" / f"x{suffix}", MASK, item(image))
    assert path == tmp_path / "out" / f"x{written}"
    with PILImage.open(path) as picture:
        assert (picture.mode, picture.size) == ("L", (4, 6))
        np.testing.assert_array_equal(np.asarray(picture), MASK)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_pages_come_back_as_pages(tmp_path: Path) -> None:
    pages = [PILImage.fromarray(SOLID[..., page]) for page in range(5)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    path = write_label(tmp_path / "y", SOLID, item(tmp_path / "x.tif"))
    assert path.name == "y.tif"
    np.testing.assert_array_equal(read_array(path, label=True)[0], SOLID)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti_keeps_affine_and_codes(tmp_path: Path, suffix: str) -> None:
    affine = np.array([[0.0, -2, 0, 9], [1.5, 0, 0, 8], [0, 0, -3, 7], [0, 0, 0, 1]])
    image = nibabel.Nifti1Image((SOLID[..., None] * np.ones(2)).astype(np.int16), affine)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    image.header.set_xyzt_units("mm", "sec")
    image.header.set_slope_inter(0.1, 5)
    nibabel.save(image, tmp_path / f"x{suffix}")
    path = write_label(tmp_path / "patient.v2", SOLID, item(tmp_path / f"x{suffix}"))
    assert path.name == f"patient.v2{suffix}"
    mask = nibabel.load(path)
    np.testing.assert_array_equal(np.asarray(mask.dataobj), SOLID)
    np.testing.assert_allclose(mask.affine, affine)
    assert mask.get_data_dtype() == np.uint8
    assert (int(mask.header["sform_code"]), int(mask.header["qform_code"])) == (1, 1)
    labelled = item(tmp_path / f"x{suffix}", path)
    np.testing.assert_array_equal(read_label(labelled, Task(("background", "x", "y"), 2, 3)), SOLID)


@pytest.mark.parametrize(("suffix", "written"), [(".mha", ".mha"), (".mhd", ".mha"), (".nrrd", ".nrrd")])
def test_itk_formats_keep_spacing_origin_and_direction(tmp_path: Path, suffix: str, written: str) -> None:
    volume = itk.image_from_array(np.ascontiguousarray(SOLID.T.astype(np.int16)))
    volume.SetSpacing([1.0, 2.0, 3.0])
    volume.SetOrigin([10.0, 20.0, 30.0])
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, -1]])
    volume.SetDirection(itk.matrix_from_array(turn))
    itk.imwrite(volume, str(tmp_path / f"x{suffix}"))
    path = write_label(tmp_path / "out" / "x", SOLID, item(tmp_path / f"x{suffix}"))
    assert path.name == f"x{written}"
    mask = itk.imread(str(path))
    np.testing.assert_array_equal(itk.array_from_image(mask).T, SOLID)
    assert list(itk.spacing(mask)) == [1, 2, 3]
    assert list(itk.origin(mask)) == [10, 20, 30]
    np.testing.assert_allclose(itk.array_from_matrix(mask.GetDirection()), turn)
    np.testing.assert_allclose(read_header(path).affine, read_header(tmp_path / f"x{suffix}").affine)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_label_on_another_grid_is_refused(tmp_path: Path) -> None:
    PILImage.fromarray(MASK).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match="expected"):
        write_label(tmp_path / "y.png", MASK.T, item(tmp_path / "x.png"))
