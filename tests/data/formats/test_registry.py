from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_support import file_item
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.formats.registry import (
    FORMATS,
    SUFFIXES,
    Format,
    Header,
    channels_first,
    checked_affine,
    format_of,
    is_picture,
    read_array,
    read_header,
    register_format,
    spacing_of,
    stem_of,
    suffix_of,
)
from polyclinic.data.writers import write_label


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(FORMATS)
    yield
    FORMATS.clear()
    FORMATS.update(before)


def text_format(*suffixes: str, **more: object) -> Format:
    """Rows of digits."""

    def array(path: Path, label: bool = False) -> np.ndarray:
        return np.array([[int(digit) for digit in row] for row in path.read_text().split()])[None]

    return Format(suffixes, lambda path: Header(array(path).shape[1:], 1, None), array, **more)  # type: ignore[arg-type]


def test_every_suffix_has_a_format_that_can_write_its_mask() -> None:
    assert set(SUFFIXES) == {
        ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".nii.gz", ".nii", ".mha", ".mhd", ".nrrd",
        ".dicom.json",
    }  # fmt: skip
    for suffix, entry in FORMATS.items():
        assert FORMATS[entry.mask_suffixes.get(suffix, suffix)].write_mask is not None


@pytest.mark.parametrize(
    ("name", "suffix", "stem"),
    [
        ("a.NII.GZ", ".nii.gz", "a"),
        ("a.nii", ".nii", "a"),
        ("a.b.PNG", ".png", "a.b"),
        ("a.gz", None, "a"),
        ("png", None, "png"),
    ],
)
def test_the_longest_known_suffix_counts(name: str, suffix: str | None, stem: str) -> None:
    assert (suffix_of(Path(name)), stem_of(Path(name))) == (suffix, stem)


def test_a_new_format_is_known_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.digits.txt"
    path.write_text("012\n345\n")
    assert suffix_of(path) is None
    register_format(text_format(".txt", picture=True))
    register_format(text_format(".digits.txt", mask_suffixes={".digits.txt": ".png"}))
    assert ".digits.txt" in SUFFIXES
    assert (suffix_of(path), is_picture(path), is_picture(tmp_path / "b.txt")) == (".digits.txt", False, True)
    assert read_header(path).shape == (2, 3)
    assert read_array(path).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    written = write_label(tmp_path / "mask", np.eye(2, 3), file_item(path))
    assert written.name == "mask.png"
    assert read_array(written, label=True).tolist() == [[[1, 0, 0], [0, 1, 0]]]


def test_whatever_a_reader_raises_becomes_a_sentence(tmp_path: Path) -> None:
    register_format(text_format(".txt"))
    (tmp_path / "a.txt").write_text("zero")
    with pytest.raises(PolyclinicError, match=r"a\.txt: cannot be read as txt \(invalid literal"):
        read_array(tmp_path / "a.txt")


@pytest.mark.parametrize("suffix", ["txt", ".TXT"])
def test_a_suffix_is_lower_case_and_starts_with_a_dot(suffix: str) -> None:
    with pytest.raises(PolyclinicError, match="must be in lower case and start with a dot"):
        register_format(text_format(suffix))


def test_two_formats_cannot_have_one_suffix() -> None:
    with pytest.raises(PolyclinicError, match=r"Two formats have the suffix '\.png'"):
        register_format(text_format(".png"))


def test_a_file_of_unknown_suffix_is_left_to_itk_and_is_no_picture() -> None:
    assert format_of(Path("scan.unknown")) is FORMATS[".mha"]
    assert not is_picture(Path("scan.unknown"))


@pytest.mark.parametrize("rank", [2, 3])
def test_spacing_is_the_length_of_the_affines_columns(rank: int) -> None:
    affine = np.array([[0.0, -2, 0, 9], [1.5, 0, 4, 8], [0, 0, 3, 7], [0, 0, 0, 1]])
    assert spacing_of(affine, rank) == pytest.approx((1.5, 2, 5)[:rank])
    assert Header((4,) * rank, 1, affine).spacing == spacing_of(affine, rank)
    assert Header((4,) * rank, 1, None).spacing is None


@pytest.mark.parametrize("more", [(), (2,), (2, 3)])
def test_all_axes_behind_the_spatial_ones_become_channels(more: tuple[int, ...]) -> None:
    array = np.arange(4 * 5 * int(np.prod(more))).reshape(4, 5, *more)
    channels = channels_first(array, 2)
    assert channels.shape == (int(np.prod(more)), 4, 5)
    for number, index in enumerate(np.ndindex(*more)):
        np.testing.assert_array_equal(channels[number], array[(..., *index)])


def test_structured_voxels_are_refused() -> None:
    with pytest.raises(ValueError, match="structured voxels"):
        channels_first(np.zeros((2, 2), [("red", "u1"), ("green", "u1")]), 2)


@pytest.mark.parametrize("broken", [np.diag([1.0, 0, 1, 1]), np.full((4, 4), np.nan)])
def test_an_affine_without_a_place_for_every_voxel_is_refused(broken: np.ndarray) -> None:
    mirrored = np.diag([-1.0, 1, 1, 1])
    assert checked_affine(mirrored) is mirrored
    with pytest.raises(ValueError, match="singular"):
        checked_affine(broken)
