"""A list of slices stands for a series: voxels in the scanner's unit, and masks as NIfTI in the same place."""

from __future__ import annotations

import json
import locale
from pathlib import Path

import itk
import nibabel
import numpy as np
import pytest

from data_support import file_item
from dicom_support import write_series
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.dicom_series import find_series
from polyclinic.data.formats import read_array, read_header
from polyclinic.data.writers import write_label

VOLUME = 2 * np.random.default_rng(0).integers(-500, 500, (6, 5, 4))
AFFINE = np.array([[-0.8, 0, 0, 30], [0, -0.7, 0, 20], [0, 0, 2.5, -10], [0, 0, 0, 1]])


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    write_series(tmp_path / "series", VOLUME, AFFINE, rescale=0.5)
    (series,) = find_series(tmp_path).usable.values()
    series.write(tmp_path / "x.dicom.json")
    return tmp_path / "x.dicom.json"


def test_each_slice_is_rescaled_by_its_own_numbers(listed: Path) -> None:
    voxels = read_array(listed)
    assert (voxels.shape, voxels.dtype) == ((1, 6, 5, 4), np.float32)
    np.testing.assert_array_equal(voxels[0], VOLUME)
    header = read_header(listed)
    assert (header.shape, header.channels) == ((6, 5, 4), 1)
    assert header.spacing == pytest.approx((0.8, 0.7, 2.5))


def test_compressed_slices_are_read(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(-500, 500, (16, 12, 1))
    (file,) = write_series(tmp_path, volume, AFFINE)
    plain = file.read_bytes()
    io = itk.GDCMImageIO.New()
    reader = itk.ImageFileReader[itk.Image[itk.SS, 2]].New(ImageIO=io, FileName=str(file))
    reader.Update()
    io.SetCompressionType(itk.GDCMImageIOEnums.Compression_JPEG2000)
    packed = str(tmp_path / "packed.dcm")
    spoken = locale.setlocale(locale.LC_ALL)
    itk.ImageFileWriter.New(reader.GetOutput(), ImageIO=io, FileName=packed, UseCompression=True).Update()
    locale.setlocale(locale.LC_ALL, spoken)  # GDCM's writer leaves another one behind; its reader does not
    file.unlink()
    (series,) = find_series(tmp_path).usable.values()
    series.write(tmp_path / "x.dicom.json")
    np.testing.assert_array_equal(read_array(tmp_path / "x.dicom.json")[0], volume)
    pixels = volume[..., 0].T.astype("<i2").tobytes()
    assert pixels in plain
    assert pixels not in Path(packed).read_bytes()


def test_a_mask_is_a_nifti_in_scanner_coordinates(listed: Path, tmp_path: Path) -> None:
    classes = (VOLUME > 0).astype(np.uint8)
    path = write_label(tmp_path / "1.2.840.99", classes, file_item(listed))
    assert path.name == "1.2.840.99.nii.gz"
    mask = nibabel.load(path)
    np.testing.assert_allclose(mask.affine, AFFINE, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(mask.dataobj), classes)
    assert (int(mask.header["sform_code"]), int(mask.header["qform_code"])) == (1, 1)
    assert mask.header.get_xyzt_units()[0] == "mm"
    assert b"Doe" not in path.read_bytes()


def test_what_does_not_fit_gets_a_sentence(listed: Path, tmp_path: Path) -> None:
    content = json.loads(listed.read_text())
    for change, words in [
        ({"files": content["files"][1:]}, "a file for each slice"),
        ({"shape": [5, 6, 4]}, "has the size 6x5, so it was changed"),
        ({"files": [*content["files"][1:], "gone"]}, "is not there any more"),
        ({"files": [*content["files"][1:], str(listed)]}, "is damaged or compressed in a way"),
        ({"affine": np.zeros((4, 4)).tolist()}, "its affine is singular"),
    ]:
        path = tmp_path / "bad.dicom.json"
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(PolyclinicError, match=words):
            read_array(path)
    path.write_text("[]")
    with pytest.raises(PolyclinicError, match=r"bad\.dicom\.json: cannot be read as dicom\.json"):
        read_header(path)
