from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from monai.data import NibabelReader

from data_support import file_item, nifti
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.data.formats import read_array, read_header
from polyclinic.data.readers import read_image, read_label
from polyclinic.data.writers import write_label

SOLID = (np.arange(6 * 4 * 5).reshape(6, 4, 5) % 3).astype(np.uint8)


def test_nifti_keeps_axes_affine_and_channels(tmp_path: Path) -> None:
    affine = np.array([[-2.0, 0, 0, 9], [0, 0, 3, 8], [0, 1.5, 0, 7], [0, 0, 0, 1]])
    array = np.random.default_rng(1).normal(size=(4, 5, 6, 2)).astype(np.float32)
    image = read_image(file_item(nifti(tmp_path / "x.nii.gz", array, affine)), Task(("background", "x"), 2, 3))
    np.testing.assert_array_equal(image.array, np.moveaxis(array, -1, 0))
    np.testing.assert_allclose(image.affine, affine)
    assert image.spacing == pytest.approx((2, 1.5, 3))


def test_a_singular_affine_is_refused(tmp_path: Path) -> None:
    volume = nibabel.Nifti1Image(np.zeros((3, 3, 3), np.float32), None)
    volume.header.set_sform(np.diag([1.0, 1, 0, 1]), code=1)
    nibabel.save(volume, tmp_path / "x.nii")
    with pytest.raises(PolyclinicError, match="affine is singular"):
        read_image(file_item(tmp_path / "x.nii"), Task(("background", "x"), 1, 3))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti_keeps_affine_and_codes(tmp_path: Path, suffix: str) -> None:
    affine = np.array([[0.0, -2, 0, 9], [1.5, 0, 0, 8], [0, 0, -3, 7], [0, 0, 0, 1]])
    image = nibabel.Nifti1Image((SOLID[..., None] * np.ones(2)).astype(np.int16), affine)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    image.header.set_xyzt_units("mm", "sec")
    image.header.set_slope_inter(0.1, 5)
    nibabel.save(image, tmp_path / f"x{suffix}")
    path = write_label(tmp_path / "patient.v2", SOLID, file_item(tmp_path / f"x{suffix}"))
    assert path.name == f"patient.v2{suffix}"
    mask = nibabel.load(path)
    np.testing.assert_array_equal(np.asarray(mask.dataobj), SOLID)
    np.testing.assert_allclose(mask.affine, affine)
    assert mask.get_data_dtype() == np.uint8
    assert (int(mask.header["sform_code"]), int(mask.header["qform_code"])) == (1, 1)
    labelled = file_item(tmp_path / f"x{suffix}", path)
    np.testing.assert_array_equal(read_label(labelled, Task(("background", "x", "y"), 2, 3)), SOLID)


def test_the_same_mask_is_the_same_bytes(tmp_path: Path) -> None:
    """A gzip header with the time of writing would change the hash of every prediction."""
    image = nifti(tmp_path / "x.nii.gz", SOLID)
    masks = [write_label(tmp_path / name, SOLID, file_item(image)).read_bytes() for name in ("a", "b")]
    assert masks[0] == masks[1]
    assert masks[0][4:8] == bytes(4)


@pytest.mark.parametrize(("shape", "channels"), [((4, 5), 1), ((4, 5, 6), 1), ((4, 5, 6, 2), 2), ((4, 5, 6, 1, 3), 3)])
def test_the_header_says_what_the_voxels_will_be(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    path = nifti(tmp_path / "x.nii", np.zeros(shape, np.int16))
    header = read_header(path)
    assert (header.shape, header.channels) == (shape[:3], channels)
    assert read_array(path).shape == (channels, *shape[:3])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("slope", [None, 0.25])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 6), (4, 5, 6, 2)])
def test_arrays_are_those_of_monais_reader(tmp_path: Path, dtype: type, slope: float | None, shape: tuple) -> None:
    image = nibabel.Nifti1Image(np.random.default_rng(0).integers(0, 99, shape).astype(dtype), np.diag([1, 2, 3, 1]))
    if slope is not None:
        image.header.set_slope_inter(slope, 5)
    nibabel.save(image, tmp_path / "x.nii.gz")
    reader = NibabelReader()
    expected = reader.get_data(reader.read(tmp_path / "x.nii.gz"))[0]
    array = read_array(tmp_path / "x.nii.gz")
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(np.moveaxis(array, 0, -1).reshape(shape), expected)
