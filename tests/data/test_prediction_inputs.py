"""Images to segment: files and folders as people have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dicom_support import series_uid, write_series
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.prediction_inputs import find_inputs, list_images


def picture(path: Path, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((4, 4, 3)[: 3 if channels == 3 else 2], dtype=np.uint8)).save(path)
    return path


def test_a_file_is_one_image(tmp_path: Path) -> None:
    path = picture(tmp_path / "scan.v2.png")
    (found,) = list_images(path)
    assert (found.name, found.images, found.label) == ("scan.v2", (path,), None)


def test_a_folder_gives_its_images_by_name_and_ignores_clutter(tmp_path: Path) -> None:
    paths = [picture(tmp_path / name) for name in ("b.png", "a.tif")]
    (tmp_path / ".DS_Store").write_bytes(b"")
    assert [(f.name, f.images) for f in list_images(tmp_path)] == [("a", (paths[1],)), ("b", (paths[0],))]


def test_a_site_folder_gives_its_images_and_never_its_labels(tmp_path: Path) -> None:
    path = picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "labels" / "a.png")
    assert [(f.images, f.label) for f in list_images(tmp_path)] == [((path,), None)]


@pytest.mark.parametrize("given", ["folder", "file"])
def test_nnunet_channels_are_grouped(tmp_path: Path, given: str) -> None:
    paths = [picture(tmp_path / f"brain_{number:04d}.png") for number in range(3)]
    (found,) = list_images(tmp_path if given == "folder" else paths[0], channels=3)
    assert (found.name, found.images) == ("brain", tuple(paths))


def test_a_file_with_all_channels_is_an_image_of_its_own_whatever_its_number(tmp_path: Path) -> None:
    """Frames of a film are named like nnU-Net's channels."""
    for number in range(3):
        picture(tmp_path / f"frame_{number:04d}.png", channels=3)
    assert [f.name for f in list_images(tmp_path, channels=3)] == ["frame_0000", "frame_0001", "frame_0002"]
    assert [f.name for f in list_images(tmp_path / "frame_0000.png", channels=3)] == ["frame_0000"]
    assert [len(f.images) for f in list_images(tmp_path, channels=9)] == [3]


def test_single_channel_nnunet_images_lose_their_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"{name}_0000.png")
    assert [f.name for f in list_images(tmp_path, channels=1)] == ["a", "b"]


@pytest.mark.parametrize("given", ["folder", "file"])
def test_channels_may_be_missing_where_the_task_fills_them(tmp_path: Path, given: str) -> None:
    paths = [picture(tmp_path / f"brain_{number:04d}.png") for number in (1, 3)]
    (found,) = list_images(tmp_path if given == "folder" else paths[0], channels=4, zero_fill=True)
    assert (found.name, found.images, found.places) == ("brain", tuple(paths), (1, 3))


def test_a_missing_channel_is_named(tmp_path: Path) -> None:
    for name in ("a_0000", "a_0001", "b_0000"):
        picture(tmp_path / f"{name}.png")
    with pytest.raises(PolyclinicError, match=r"image 'b' has the channels 0000, but others have 0000 to 0001"):
        list_images(tmp_path, channels=2)


def test_a_folder_of_dicom_series_gives_an_image_a_series(tmp_path: Path) -> None:
    volume, affine = np.zeros((3, 4, 2)), np.diag([1.0, 1, 2, 1])
    files = [
        *write_series(tmp_path / "d" / "a", volume, affine, 1),
        *write_series(tmp_path / "d" / "b", volume, affine, 2),
    ]
    scratch = tmp_path / "scratch"
    found = find_inputs(tmp_path / "d", scratch, channels=1)
    assert sorted(image.name for image in found.images) == sorted([series_uid(1), series_uid(2)])
    assert [image.images for image in found.images] == [
        (scratch / f"{image.name}.dicom.json",) for image in found.images
    ]
    with pytest.raises(PolyclinicError, match="holds DICOM series of one channel each, but the task has 4; convert"):
        find_inputs(tmp_path / "d", scratch, channels=4)
    with pytest.raises(PolyclinicError, match="is one file of a DICOM series; give the folder"):
        find_inputs(files[0], scratch)
    write_series(tmp_path / "e", volume[..., :1], affine, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    with pytest.raises(PolyclinicError, match=r"e: holds no DICOM series that can be segmented\. .* is a localizer"):
        find_inputs(tmp_path / "e", scratch)


def test_other_folders_are_listed_as_they_were(tmp_path: Path) -> None:
    path = picture(tmp_path / "site" / "images" / "a.png")
    assert find_inputs(tmp_path / "site", tmp_path).images == list_images(tmp_path / "site")
    assert find_inputs(path, tmp_path).images == list_images(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolyclinicError, match=r"empty: holds no images; give .* or DICOM series"):
        find_inputs(tmp_path / "empty", tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "typo", "typo: no such file or folder; give an image"),
        (lambda folder: folder, "holds no images; give an image or a folder of images"),
        (lambda folder: picture(folder / "north" / "images" / "a.png").parents[2], "holds no images"),
        (lambda folder: _text(folder / "notes.txt"), r"notes.txt: unknown format; expected one of .png"),
        (lambda folder: _text(picture(folder / "a.png").with_name("notes.txt")).parent, r"notes.txt: unknown format"),
        (lambda folder: picture(picture(folder / "a.png").with_suffix(".tif")).parent, "same name as a.png"),
    ],
)
def test_what_cannot_be_listed_gets_a_sentence(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PolyclinicError, match=message):
        list_images(make(tmp_path))


def _text(path: Path) -> Path:
    path.write_text("no image")
    return path
