"""Series in folders: which files, in which order, where; and a sentence for what is no plain stack of slices."""

from __future__ import annotations

from pathlib import Path

import itk
import numpy as np
import pytest

from dicom_support import REPORT, series_uid, write_file, write_series, write_slice
from polyclinic.data.dicom_series import find_series, is_dicom
from polyclinic.data.formats import read_array, read_header

VOLUME = np.random.default_rng(0).integers(-500, 500, (6, 5, 4))
STRAIGHT = np.array([[-0.8, 0, 0, 30], [0, -0.7, 0, 20], [0, 0, 2.5, -10], [0, 0, 0, 1]])
_TURN = np.array([[np.cos(0.3), -np.sin(0.3), 0], [np.sin(0.3), np.cos(0.3), 0], [0, 0, 1]])
SAGITTAL = np.eye(4)
SAGITTAL[:3, :3] = _TURN @ np.array([[0, 0, 3.0], [-0.9, 0, 0], [0, -1.1, 0]])
SAGITTAL[:3, 3] = (4, 5, 6)
TILTED = STRAIGHT.copy()
TILTED[1, 2] = 0.6  # a gantry that leans


@pytest.mark.parametrize("affine", [STRAIGHT, SAGITTAL, TILTED], ids=["straight", "sagittal", "tilted"])
def test_slices_are_put_in_order_and_in_their_place(tmp_path: Path, affine: np.ndarray) -> None:
    write_series(tmp_path / "export" / "a", VOLUME, affine)
    found = find_series(tmp_path)
    assert (found.problems, found.notices) == ({}, [])
    series = found.usable[series_uid()]
    assert series.shape == VOLUME.shape
    series.write(tmp_path / "x.dicom.json")
    voxels, header = read_array(tmp_path / "x.dicom.json")[0], read_header(tmp_path / "x.dicom.json")
    # Slices may come out in the other direction along their normal: then the affine must say so.
    flipped = not np.allclose(header.affine, affine, atol=1e-4)
    expected, turned = VOLUME, affine
    if flipped:
        expected, turned = VOLUME[..., ::-1], affine.copy()
        turned[:3, 2], turned[:3, 3] = -affine[:3, 2], (affine @ [0, 0, VOLUME.shape[2] - 1, 1])[:3]
    np.testing.assert_allclose(header.affine, turned, atol=1e-4)
    np.testing.assert_array_equal(voxels, expected)


def test_the_grid_is_that_of_itks_own_series_reader(tmp_path: Path) -> None:
    write_series(tmp_path, VOLUME, SAGITTAL)
    (series,) = find_series(tmp_path).usable.values()
    reader = itk.ImageSeriesReader[itk.Image[itk.F, 3]].New(
        ImageIO=itk.GDCMImageIO.New(), FileNames=[str(file) for file in series.files]
    )
    reader.Update()
    image = reader.GetOutput()
    lps = np.eye(4)
    lps[:3, :3] = itk.array_from_matrix(image.GetDirection()) * np.array(image.GetSpacing())
    lps[:3, 3] = np.array(image.GetOrigin())
    np.testing.assert_allclose(series.affine, np.diag([-1, -1, 1, 1]) @ lps, atol=1e-4)


def test_series_of_nested_folders_are_told_apart_by_their_uid(tmp_path: Path) -> None:
    first = write_series(tmp_path / "Doe Jane" / "CT", VOLUME, STRAIGHT, number=1)
    write_series(tmp_path / "Doe Jane", VOLUME[..., :3], SAGITTAL, number=2)
    (tmp_path / "notes.txt").write_text("not DICOM")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "again").write_bytes(first[0].read_bytes())  # the same instance twice
    found = find_series(tmp_path)
    assert {uid: series.shape for uid, series in found.usable.items()} == {
        series_uid(1): (6, 5, 4),
        series_uid(2): (6, 5, 3),
    }
    assert (found.problems, found.notices) == ({}, [])
    assert not is_dicom(tmp_path / "notes.txt")


def test_a_single_slice_is_a_volume_as_deep_as_it_is_thick(tmp_path: Path) -> None:
    write_series(tmp_path, VOLUME[..., :1], STRAIGHT, SliceThickness="4")
    (series,) = find_series(tmp_path).usable.values()
    assert series.shape == (6, 5, 1)
    assert np.linalg.norm(series.affine[:3, 2]) == pytest.approx(4)


def test_a_slice_that_may_be_missing_at_an_end_gets_a_line(tmp_path: Path) -> None:
    files = write_series(tmp_path, VOLUME, STRAIGHT)
    files[0].unlink()
    found = find_series(tmp_path)
    assert found.usable[series_uid()].shape == (6, 5, 3)
    (line,) = found.notices
    assert "has 3 slices with numbers from 2 to 4, so some may be missing; it is used as it is" in line


def several_at_one_place(folder: Path) -> None:
    write_series(folder / "a", VOLUME, STRAIGHT)
    write_series(folder / "b", VOLUME, STRAIGHT)


def without_a_slice(folder: Path) -> None:
    files = write_series(folder, np.concatenate([VOLUME, VOLUME], axis=2), STRAIGHT)
    files[3].unlink()


def of_two_orientations(folder: Path) -> None:
    write_series(folder / "a", VOLUME, STRAIGHT)
    write_series(folder / "b", VOLUME, SAGITTAL)


def multi_frame(folder: Path) -> None:
    write_slice(folder / "x.dcm", np.zeros((3, 5, 6)), series_uid())


def half_placed(folder: Path) -> None:
    write_series(folder, VOLUME, STRAIGHT)
    write_slice(folder / "z", VOLUME[..., 0].T, series_uid(), PixelSpacing=[1, 1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (several_at_one_place, "has several images at one place"),
        (without_a_slice, "lacks slices or has uneven ones: 5 mm from IM014 to IM028, 2.5 mm elsewhere"),
        (of_two_orientations, "has slices of different sizes or orientations"),
        (multi_frame, "has several frames in a file"),
        (half_placed, "does not say for each slice where it lies"),
    ],
)
def test_what_is_no_stack_of_slices_gets_a_sentence_and_does_not_stop_others(
    tmp_path: Path, make: object, words: str
) -> None:
    make(tmp_path / "bad")  # type: ignore[operator]
    write_series(tmp_path / "good", VOLUME, STRAIGHT, number=5)
    found = find_series(tmp_path)
    assert list(found.usable) == [series_uid(5)]
    assert found.problems[series_uid()].count(words) == 1
    assert found.problems[series_uid()].startswith(str(tmp_path / "bad"))
    assert "Doe" not in str(found)


def test_localizers_screenshots_and_reports_are_left_out_with_a_line(tmp_path: Path) -> None:
    write_series(
        tmp_path / "scout", VOLUME[..., :1], STRAIGHT, number=1, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]
    )
    write_slice(tmp_path / "screenshot", np.zeros((5, 6)), series_uid(2))
    write_slice(tmp_path / "seg", np.zeros((2, 5, 6)), series_uid(3), Modality="SEG")
    write_file(tmp_path / "report", {"SOPClassUID": REPORT, "SeriesInstanceUID": series_uid(4), "Modality": "SR"})
    found = find_series(tmp_path)
    assert (found.usable, found.problems) == ({}, {})
    lines = "\n".join(found.notices)
    for words in ("is a localizer", "as radiographs, ultrasound and screenshots", "holds a segmentation"):
        assert words in lines
    assert f"{tmp_path / 'report'}: DICOM without an image" in lines
    assert len(found.notices) == 4


def test_damaged_files_and_hostile_uids_get_a_sentence(tmp_path: Path) -> None:
    (file,) = write_series(tmp_path / "a", VOLUME[..., :1], STRAIGHT)
    file.write_bytes(file.read_bytes()[:-20])
    write_series(tmp_path / "b", VOLUME[..., :2], STRAIGHT, SeriesInstanceUID="../../etc/x")
    write_series(tmp_path / "c", VOLUME[..., :2], STRAIGHT, SeriesInstanceUID="..")
    found = find_series(tmp_path)
    assert found.usable == {}
    assert "its image is damaged" in found.problems[str(file)]
    assert sum("no valid SeriesInstanceUID" in problem for problem in found.problems.values()) == 4
