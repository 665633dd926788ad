"""What the task and an image's header say."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_support import write_picture, write_volume
from polyclinic.data.federation import Item, Task, item_header


def test_every_foreground_class_is_judged_unless_there_are_regions() -> None:
    classes = ("background", "white", "grey")
    assert Task(classes, 1, 2).judged == {"white": (1,), "grey": (2,)}
    regions = (("cord", (1, 2)), ("grey", (2,)))
    assert Task(classes, 1, 2, regions=regions).judged == {"cord": (1, 2), "grey": (2,)}


def test_neighbouring_slices_are_no_channels_of_a_file() -> None:
    assert Task(("background", "x"), 6, 2, neighbours=1).image_channels == 2
    assert Task(("background", "x"), 6, 2).image_channels == 6


@pytest.mark.parametrize(
    ("spacing", "rank", "expected"), [((1.0, 2.0), 2, (1.0, 2.0)), ((1.0, 2.0), 3, None), (None, 2, None)]
)
def test_a_nominal_spacing_is_that_of_files_with_as_many_axes(
    spacing: tuple[float, ...] | None, rank: int, expected: tuple[float, ...] | None
) -> None:
    assert Task(("background", "x"), 1, 2, spacing=spacing).nominal_spacing(rank) == expected


def test_the_channels_of_several_files_are_those_of_one_image(tmp_path: Path) -> None:
    files = tuple(tmp_path / f"x_000{number}.nii.gz" for number in range(2))
    write_volume(files[0], (6, 5, 4))
    write_volume(files[1], (6, 5, 4, 2))
    header = item_header(Item("a", "x", files, None, "x"))
    assert (header.shape, header.channels) == ((6, 5, 4), 3)
    write_picture(tmp_path / "p.png", [[[0, 1, 2], [3, 4, 5]]])
    header = item_header(Item("a", "p", (tmp_path / "p.png",), None, "p"))
    assert (header.shape, header.channels, header.affine) == ((1, 2), 3, None)
