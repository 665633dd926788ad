from __future__ import annotations

from pathlib import Path

import itk
import numpy as np
import pytest
from monai.data import ITKReader

from data_support import file_item
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.data.formats import read_array, read_header
from polyclinic.data.readers import read_image
from polyclinic.data.writers import write_label

VOLUME = Task(("background", "x"), 1, 3)
SOLID = (np.arange(6 * 4 * 5).reshape(6, 4, 5) % 3).astype(np.uint8)


def test_mha_lies_where_the_same_nifti_lies(tmp_path: Path) -> None:
    array = np.random.default_rng(2).integers(0, 99, (4, 5, 6)).astype(np.int16)
    volume = itk.image_from_array(np.ascontiguousarray(array.T))
    volume.SetSpacing([1.0, 2.0, 3.0])
    volume.SetOrigin([10.0, 20.0, 30.0])
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    volume.SetDirection(itk.matrix_from_array(turn))
    itk.imwrite(volume, str(tmp_path / "x.mha"))
    itk.imwrite(volume, str(tmp_path / "x.nii"))
    mha, nii = (read_image(file_item(tmp_path / f"x.{suffix}"), VOLUME) for suffix in ("mha", "nii"))
    np.testing.assert_array_equal(mha.array[0], array)
    np.testing.assert_array_equal(nii.array[0], array)
    np.testing.assert_allclose(mha.affine, nii.affine, atol=1e-5)
    assert mha.spacing == pytest.approx((1, 2, 3))
    assert read_header(tmp_path / "x.mha").shape == (4, 5, 6)


@pytest.mark.parametrize(("suffix", "written"), [(".mha", ".mha"), (".mhd", ".mha"), (".nrrd", ".nrrd")])
def test_itk_formats_keep_spacing_origin_and_direction(tmp_path: Path, suffix: str, written: str) -> None:
    volume = itk.image_from_array(np.ascontiguousarray(SOLID.T.astype(np.int16)))
    volume.SetSpacing([1.0, 2.0, 3.0])
    volume.SetOrigin([10.0, 20.0, 30.0])
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, -1]])
    volume.SetDirection(itk.matrix_from_array(turn))
    itk.imwrite(volume, str(tmp_path / f"x{suffix}"))
    path = write_label(tmp_path / "out" / "x", SOLID, file_item(tmp_path / f"x{suffix}"))
    assert path.name == f"x{written}"
    mask = itk.imread(str(path))
    np.testing.assert_array_equal(itk.array_from_image(mask).T, SOLID)
    assert list(itk.spacing(mask)) == [1, 2, 3]
    assert list(itk.origin(mask)) == [10, 20, 30]
    np.testing.assert_allclose(itk.array_from_matrix(mask.GetDirection()), turn)
    np.testing.assert_allclose(read_header(path).affine, read_header(tmp_path / f"x{suffix}").affine)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_components_of_a_vector_volume_are_channels(tmp_path: Path) -> None:
    array = np.arange(4 * 5 * 6 * 2, dtype=np.float32).reshape(4, 5, 6, 2)
    vectors = np.ascontiguousarray(array.transpose(2, 1, 0, 3))  # ITK's arrays are (z, y, x, component)
    itk.imwrite(itk.image_from_array(vectors, is_vector=True), str(tmp_path / "x.mha"))
    header = read_header(tmp_path / "x.mha")
    assert (header.shape, header.channels) == ((4, 5, 6), 2)
    np.testing.assert_array_equal(read_array(tmp_path / "x.mha"), np.moveaxis(array, -1, 0))


def test_a_file_that_itk_does_not_know_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.unknown").write_bytes(b"no volume")
    with pytest.raises(PolyclinicError, match=r"x\.unknown: cannot be read as unknown \(ITK does not recognise it\)"):
        read_header(tmp_path / "x.unknown")


@pytest.mark.parametrize("suffix", [".mha", ".mhd", ".nrrd"])
@pytest.mark.parametrize("vectors", [False, True])
def test_arrays_are_those_of_monais_reader(tmp_path: Path, suffix: str, vectors: bool) -> None:
    array = np.arange(4 * 5 * 6 * 2, dtype=np.float32).reshape(6, 5, 4, 2)
    image = itk.image_from_array(array, is_vector=True) if vectors else itk.image_from_array(array[..., 0].copy())
    itk.imwrite(image, str(tmp_path / f"x{suffix}"))
    reader = ITKReader()
    expected = reader.get_data(reader.read(tmp_path / f"x{suffix}"))[0]
    found = read_array(tmp_path / f"x{suffix}")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.moveaxis(found, 0, -1).reshape(expected.shape), expected)
