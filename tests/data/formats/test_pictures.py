from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from monai.data import PILReader
from PIL import Image as PILImage

from data_support import file_item, saved
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.data.formats import read_array, read_header
from polyclinic.data.readers import read_image, read_label
from polyclinic.data.writers import write_label

GREY, COLOUR = Task(("background", "x"), 1, 2), Task(("background", "x"), 3, 2)
VOLUME = Task(("background", "x"), 1, 3)
RAMP = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)  # rows differ from columns: a swap shows
MASK = (np.arange(6 * 4).reshape(6, 4) % 3).astype(np.uint8)
SOLID = (np.arange(6 * 4 * 5).reshape(6, 4, 5) % 3).astype(np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
def test_rows_stay_rows(tmp_path: Path, suffix: str) -> None:
    image = read_image(file_item(saved(tmp_path / f"x{suffix}", RAMP)), GREY)
    np.testing.assert_array_equal(image.array[0], RAMP)
    assert image.array.dtype == np.float32
    assert image.affine is None
    assert image.spacing is None


def test_colour_is_channel_first_and_alpha_is_dropped(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (6, 4, 4), dtype=np.uint8)
    image = read_image(file_item(saved(tmp_path / "x.png", array)), COLOUR)
    np.testing.assert_array_equal(image.array, np.moveaxis(array[..., :3], -1, 0))
    with_alpha = saved(tmp_path / "grey.png", RAMP, "LA")
    np.testing.assert_array_equal(read_image(file_item(with_alpha), GREY).array[0], RAMP)


def test_jpeg_keeps_its_axes(tmp_path: Path) -> None:
    PILImage.fromarray(np.repeat(RAMP[..., None] * 10, 3, 2)).save(tmp_path / "x.jpg", quality=100, subsampling=0)
    image = read_image(file_item(tmp_path / "x.jpg"), COLOUR)
    assert np.abs(image.array[0] - RAMP * 10.0).max() < 8


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit(tmp_path: Path, suffix: str) -> None:
    array = RAMP.astype(np.uint16) * 2000
    np.testing.assert_array_equal(read_image(file_item(saved(tmp_path / f"x{suffix}", array)), GREY).array[0], array)


def test_a_palette_is_colour_in_an_image_and_class_in_a_label(tmp_path: Path) -> None:
    picture = PILImage.fromarray((RAMP > 11).astype(np.uint8), mode="P")
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.save(tmp_path / "x.png")
    both = file_item(tmp_path / "x.png", tmp_path / "x.png")
    assert read_image(both, COLOUR).array[:, 0, 0].tolist() == [10, 20, 30]
    np.testing.assert_array_equal(read_label(both, GREY), RAMP > 11)


def test_pages_of_a_tiff_are_the_last_axis(tmp_path: Path) -> None:
    pages = [PILImage.fromarray(RAMP + page) for page in range(3)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    assert read_header(tmp_path / "x.tif").shape == (6, 4, 3)
    array = read_image(file_item(tmp_path / "x.tif"), VOLUME).array
    np.testing.assert_array_equal(array[0], np.stack([RAMP, RAMP + 1, RAMP + 2], 2))


def test_tiff_pages_of_different_sizes_are_refused(tmp_path: Path) -> None:
    PILImage.fromarray(RAMP).save(tmp_path / "x.tif", save_all=True, append_images=[PILImage.fromarray(RAMP[:3])])
    with pytest.raises(PolyclinicError, match="pages differ in size"):
        read_image(file_item(tmp_path / "x.tif"), VOLUME)


@pytest.mark.parametrize(
    ("suffix", "written"), [(".png", ".png"), (".tif", ".tif"), (".jpg", ".png"), (".bmp", ".png")]
)
def test_pictures_keep_rows_as_rows(tmp_path: Path, suffix: str, written: str) -> None:
    image = tmp_path / f"x{suffix}"
    PILImage.fromarray(np.zeros((6, 4, 3), np.uint8)).save(image)
    path = write_label(tmp_path / "out" / f"x{suffix}", MASK, file_item(image))
    assert path == tmp_path / "out" / f"x{written}"
    with PILImage.open(path) as picture:
        assert (picture.mode, picture.size) == ("L", (4, 6))
        np.testing.assert_array_equal(np.asarray(picture), MASK)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_pages_come_back_as_pages(tmp_path: Path) -> None:
    pages = [PILImage.fromarray(SOLID[..., page]) for page in range(5)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    path = write_label(tmp_path / "y", SOLID, file_item(tmp_path / "x.tif"))
    assert path.name == "y.tif"
    np.testing.assert_array_equal(read_array(path, label=True)[0], SOLID)


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("I;16", 1), ("P", 3), ("RGBA", 3)])
def test_the_header_says_what_the_voxels_will_be(tmp_path: Path, mode: str, channels: int) -> None:
    PILImage.new(mode, (4, 6)).save(tmp_path / "x.png")
    header = read_header(tmp_path / "x.png")
    assert (header.shape, header.channels, header.affine) == ((6, 4), channels, None)
    assert read_array(tmp_path / "x.png").shape == (channels, 6, 4)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".bmp"])
@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "F", "1"])
def test_arrays_are_those_of_monais_reader(tmp_path: Path, suffix: str, mode: str) -> None:
    if (suffix in (".jpg", ".bmp") and mode in ("I;16", "F")) or (suffix, mode) in ((".png", "F"), (".jpg", "1")):
        pytest.skip("the format does not hold these pixels")
    colours = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    picture = PILImage.fromarray(colours if mode in ("L", "RGB", "1") else colours[..., 0]).convert(mode)
    picture.save(tmp_path / f"x{suffix}")
    reader = PILReader(reverse_indexing=False)
    with reader.read(tmp_path / f"x{suffix}") as opened:
        expected = reader.get_data(opened)[0]
    array = read_array(tmp_path / f"x{suffix}")
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(np.moveaxis(array, 0, -1).reshape(expected.shape), expected)
