from __future__ import annotations

import os
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.contact_sheet import _flatten, contact_sheet
from polyclinic.data.open_federation import open_federation
from polyclinic.data.phantoms import write_demo
from polyclinic.data.readers import Image as ReadImage


@pytest.mark.parametrize(("name", "size", "sites"), [("nuclei", 16, 4), ("prostate", 16, 6), ("tumour", 12, 3)])
def test_one_row_for_each_site(name: str, size: int, sites: int, tmp_path: Path) -> None:
    write_demo(name, tmp_path / "f", size=size, cases=3)
    path = tmp_path / "new" / "sheet.png"
    assert contact_sheet(open_federation(tmp_path / "f"), path, per_site=2) == 2 * sites
    with Image.open(path) as sheet:
        sheet.verify()
        wide, high = sheet.size
    contact_sheet(open_federation(tmp_path / "f"), path, per_site=1)
    with Image.open(path) as sheet:
        assert sheet.size[1] == high
        assert sheet.size[0] < wide
    assert [p.name for p in path.parent.iterdir()] == ["sheet.png"]


def test_outlines_are_drawn_only_where_there_is_a_label(tmp_path: Path) -> None:
    write_demo("prostate", tmp_path / "f", size=16, cases=1)

    def yellow() -> int:
        contact_sheet(open_federation(tmp_path / "f"), tmp_path / "s.png")
        pixels = np.asarray(Image.open(tmp_path / "s.png").convert("RGB"), dtype=int)[:-50]
        return int(((pixels[..., 0] > 200) & (pixels[..., 2] < 60)).sum())

    drawn = yellow()
    assert drawn > 100
    (tmp_path / "f/hospital-a/labels/case-001.nii.gz").unlink()
    assert 0 < yellow() < drawn


def test_unreadable_files_are_replaced_or_left_out(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    federation = open_federation(tmp_path / "f")
    (tmp_path / "f/hospital-a/images/case-001-1.png").write_bytes(b"broken")
    assert contact_sheet(federation, tmp_path / "s.png", per_site=1) == 4
    assert contact_sheet(federation, tmp_path / "s.png", per_site=2) == 7


def test_nothing_readable_writes_nothing(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    federation = open_federation(tmp_path / "f")
    for path in (tmp_path / "f").rglob("images/*.png"):
        path.write_bytes(b"broken")
    assert contact_sheet(federation, tmp_path / "s.png") == 0
    assert not (tmp_path / "s.png").exists()


def test_a_path_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyclinicError, match="cannot be written"):
        contact_sheet(open_federation(tmp_path / "f"), tmp_path / "file" / "s.png")


def test_nothing_but_a_contact_sheet_is_replaced(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    federation = open_federation(tmp_path / "f")
    (tmp_path / "recipe.toml").write_text("seed = 1")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    image = tmp_path / "f/hospital-a/images/case-001-1.png"
    cut = tmp_path / "cut.png"
    cut.write_bytes(image.read_bytes()[:20])
    for path in (tmp_path / "recipe.toml", image, cut, tmp_path / "nowhere.png", tmp_path / "pipe"):
        with pytest.raises(PolyclinicError, match="is there already and no contact sheet of polyclinic; choose"):
            contact_sheet(federation, path)
    for path in (tmp_path / "f", tmp_path / "link"):
        with pytest.raises(PolyclinicError, match="is a folder; name a file for the contact sheet, such as"):
            contact_sheet(federation, path)
    assert (tmp_path / "recipe.toml").read_text() == "seed = 1"
    assert (tmp_path / "link").is_symlink()


def test_a_contact_sheet_says_so_and_may_be_replaced(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    federation = open_federation(tmp_path / "f")
    for _ in range(2):
        contact_sheet(federation, tmp_path / "s.png")
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.info["Software"] == "polyclinic contact sheet"


def test_the_default_sheet_of_an_earlier_version_may_be_replaced(tmp_path: Path) -> None:
    """It has no mark, but the resolution of all sheets and no text."""
    write_demo("nuclei", tmp_path / "f", size=16, cases=1)
    federation, plain = open_federation(tmp_path / "f"), Image.new("RGBA", (8, 8))
    plain.save(tmp_path / "contact-sheet.png", dpi=(120, 120))
    contact_sheet(federation, tmp_path / "contact-sheet.png")
    plain.save(tmp_path / "contact-sheet.png")
    with pytest.raises(PolyclinicError, match="no contact sheet"):
        contact_sheet(federation, tmp_path / "contact-sheet.png")


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR", "SAL"])
def test_volumes_are_shown_front_up_and_right_on_the_left_in_any_orientation(codes: str) -> None:
    volume = np.zeros((6, 8, 10), np.float32)  # right, front, head
    volume[5, 4, 7] = 1.0  # far right
    volume[2, 7, 7] = 2.0  # far front
    label = np.zeros(volume.shape, np.uint8)
    label[1, 1, 6:9] = 1  # its middle slice is 7
    affine = np.diag([1.0, 2.0, 5.0, 1.0])
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(codes)
    )
    turned, mask = (nibabel.orientations.apply_orientation(array, turn) for array in (volume, label))
    affine = affine @ nibabel.orientations.inv_ornt_aff(turn, volume.shape)
    spacing = tuple(np.linalg.norm(affine[:3, :3], axis=0))
    shown, shown_label, aspect = _flatten(ReadImage(turned[None], affine, spacing), mask, picture=False)
    assert shown.shape == (8, 6)
    assert shown[0, 3] == shown.max()  # front: first row
    assert shown[3, 0] > 0  # right: first column
    assert np.argwhere(shown_label).tolist() == [[6, 4]]
    assert aspect == pytest.approx(2.0)


def test_colour_pictures_keep_their_colours() -> None:
    array = np.zeros((3, 4, 5), np.float32)
    array[0], array[1] = 255, 51
    shown, _, aspect = _flatten(ReadImage(array, None, None), np.zeros((4, 5), np.uint8), picture=True)
    assert shown.shape == (4, 5, 3)
    assert np.allclose(shown, [1.0, 0.2, 0.0])
    assert aspect == 1.0
