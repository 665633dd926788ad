from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_support import two_sites, write_picture
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.open_federation import open_federation
from polyclinic.data.open_tolerantly import open_tolerantly
from polyclinic.recipe import DataSettings

DEFAULTS = DataSettings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with three colour images each, the last without a label; everything is declared."""
    (tmp_path / "fed").mkdir()
    (tmp_path / "fed" / "federation.toml").write_text('classes = ["background", "organ"]\nchannels = 3\n')
    return two_sites(tmp_path / "fed")


def names(root: Path) -> dict[str, list[str]]:
    federation, _ = open_tolerantly(root, DEFAULTS)
    return {site: [item.name for item in items] for site, items in federation.sites.items()}


def test_what_opens_is_what_open_federation_opens(folder: Path) -> None:
    assert open_tolerantly(folder, DEFAULTS) == (open_federation(folder, DEFAULTS), [])


def test_stray_labels_are_listed_one_by_one_and_the_pairs_stay(folder: Path) -> None:
    expected = names(folder)
    for stray in ("y", "x"):
        write_picture(folder / "north" / "labels" / f"{stray}.png", np.zeros((8, 6)))
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert names(folder) == expected
    assert [(problem.site, problem.file) for problem in problems] == [
        ("north", "north/labels/x.png"), ("north", "north/labels/y.png"),
    ]  # fmt: skip
    assert [item.label is not None for item in federation.sites["north"]] == [True, True, False]


def test_a_wrong_key_is_listed_and_the_other_keys_count(folder: Path) -> None:
    with (folder / "federation.toml").open("a") as file:
        file.write("chanels = 1\n")
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert [problem.file for problem in problems] == ["federation.toml"]
    assert (federation.task.classes, federation.task.channels) == (("background", "organ"), 3)


def test_a_wrong_manifest_is_listed_and_every_image_is_its_own_case(folder: Path) -> None:
    (folder / "manifest.csv").write_text("site,image,case\nnorth,nobody,ann\n")
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert [problem.file for problem in problems] == ["manifest.csv"]
    assert [item.case for item in federation.sites["north"]] == ["a", "b", "c"]


def test_cases_of_a_good_manifest_stay_when_something_else_is_wrong(folder: Path) -> None:
    (folder / "manifest.csv").write_text("site,image,case,split\nnorth,a,ann,train\nnorth,b,ann,train\n")
    (folder / "empty").mkdir()
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert [(problem.site, problem.file) for problem in problems] == [("empty", "empty")]
    assert [(item.case, item.split) for item in federation.sites["north"]] == [
        ("ann", "train"), ("ann", "train"), ("c", None),
    ]  # fmt: skip


def test_undeclared_channels_are_those_of_most_images_and_classes_may_be_any(folder: Path) -> None:
    (folder / "federation.toml").unlink()
    write_picture(folder / "east" / "images" / "a.png", np.zeros((8, 6)))
    (folder / "empty").mkdir()
    task = open_tolerantly(folder, DEFAULTS)[0].task
    assert (task.channels, task.spatial_dims, len(task.classes)) == (3, 2, 256)
    assert task.classes[:2] == ("background", "class 1")


def test_sites_that_are_not_declared_are_left_alone(folder: Path) -> None:
    with (folder / "federation.toml").open("a") as file:
        file.write('sites = ["north", "east"]\n')
    (folder / "aside").mkdir()
    write_picture(folder / "east" / "labels" / "stray.png", np.zeros((8, 6)))
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert list(federation.sites) == ["east", "north"]
    assert {problem.site for problem in problems} == {"east"}


def test_a_damaged_image_is_left_to_those_who_read_its_voxels(folder: Path) -> None:
    (folder / "east" / "images" / "a.png").write_bytes(b"no picture")
    federation, problems = open_tolerantly(folder, DEFAULTS)
    assert problems == []
    assert [item.name for item in federation.sites["east"]] == ["a", "b", "c"]


def test_a_source_without_sites_raises(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "only" / "empty").mkdir(parents=True)
    for source in (tmp_path / "absent", tmp_path / "hollow", tmp_path / "only", folder / "north", "demo:nucle"):
        with pytest.raises(PolyclinicError):
            open_tolerantly(source, DEFAULTS)
