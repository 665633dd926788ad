from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item
from polyclinic.data.formats import (
    FORMATS,
    SUFFIXES,
    Format,
    Header,
    is_picture,
    read_array,
    read_header,
    register_format,
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
    written = write_label(tmp_path / "mask", np.eye(2, 3), Item("", "a", (path,), None, "a"))
    assert written.name == "mask.png"
    assert read_array(written, label=True).tolist() == [[[1, 0, 0], [0, 1, 0]]]


def test_a_format_without_masks_says_so(tmp_path: Path) -> None:
    register_format(text_format(".txt"))
    (tmp_path / "a.txt").write_text("01")
    with pytest.raises(
        PolyclinicError, match=r"a\.txt: masks cannot be written as \.txt; give its format a write_mask"
    ):
        write_label(tmp_path / "mask", np.zeros((1, 2)), Item("", "a", (tmp_path / "a.txt",), None, "a"))


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
