"""Embedded federations as files: the same bytes for a seed, whole or not there."""

from __future__ import annotations

import csv
import dataclasses
import tomllib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from phantom_support import first_image
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.open_federation import open_federation
from polyclinic.data.phantoms import DEMOS, demo_files, demo_folder, write_demo
from polyclinic.data.readers import read_image, read_label

SMALL = {
    "nuclei": (32, 32), "prostate": (32, 32, 6), "tumour": (16, 16, 16), "pathology": (32, 32),
    "cardiac": (32, 32, 4), "spine": (32, 32, 4), "bladder": (32, 32, 4),
}  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", DEMOS)
def test_same_seed_same_bytes_other_seed_other_images(name: str, tmp_path: Path) -> None:
    for folder, seed in (("first", 3), ("again", 3), ("other", 4)):
        write_demo(name, tmp_path / folder, seed=seed, size=SMALL[name], cases=1)
    first, again, other = (contents(tmp_path / folder) for folder in ("first", "again", "other"))
    assert first == again
    assert first.keys() == other.keys()
    images = [file for file in first if "/images/" in file]
    assert images
    assert all(first[file] != other[file] for file in images)


@pytest.mark.parametrize("name", DEMOS)
def test_opens_as_the_declared_task(name: str, tmp_path: Path) -> None:
    write_demo(name, tmp_path / "f", size=SMALL[name], cases=1)
    federation = open_federation(tmp_path / "f")
    demo = DEMOS[name]
    assert federation.task.classes == demo.classes
    assert (federation.task.channels, federation.task.spatial_dims) == (demo.channels, demo.spatial_dims)
    assert list(federation.sites) == sorted(demo.cases)
    for items in federation.sites.values():
        assert len(items) == demo.images_per_case
        for item in items:
            image, label = read_image(item, federation.task), read_label(item, federation.task)
            assert image.array.shape == (demo.channels, *SMALL[name])
            assert set(np.unique(label)) == set(range(len(demo.classes)))


def test_cases_are_whole_and_shared_out_60_20_20(tmp_path: Path) -> None:
    write_demo("nuclei", tmp_path / "f", size=16, cases=10)
    with (tmp_path / "f/manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    splits = defaultdict(set)
    for row in rows:
        splits[row["site"], row["case"]].add(row["split"])
    assert all(len(parts) == 1 for parts in splits.values())
    for site in DEMOS["nuclei"].cases:
        own = [next(iter(parts)) for (owner, _), parts in splits.items() if owner == site]
        assert (own.count("train"), own.count("val"), own.count("test")) == (6, 2, 2)


@pytest.mark.parametrize(("count", "expected"), [(1, "train"), (2, "train test"), (3, "train val test")])
def test_few_cases_train_first_then_test(count: int, expected: str) -> None:
    assert demo_files._splits(count) == expected.split()


def test_volumes_keep_their_spacing_and_field_of_view(tmp_path: Path) -> None:
    write_demo("prostate", tmp_path / "small", size=32, cases=1)
    write_demo("prostate", tmp_path / "large", size=64, cases=1)
    for site, (plane, depth) in {"hospital-a": (1.0, 3.0), "hospital-b": (1.1, 3.3)}.items():
        small, large = (nibabel.load(tmp_path / f / site / "images/case-001.nii.gz") for f in ("small", "large"))
        assert large.shape == (64, 64, 10)
        assert large.header.get_zooms() == pytest.approx((plane, plane, depth))
        assert small.shape == (32, 32, 10)
        assert small.header.get_zooms() == pytest.approx((2 * plane, 2 * plane, depth))


def test_regions_are_written_where_a_demo_has_them(tmp_path: Path) -> None:
    write_demo("spine", tmp_path / "s", size=16, cases=1)
    write_demo("bladder", tmp_path / "b", size=16, cases=1)
    tables = [tomllib.loads((tmp_path / folder / "federation.toml").read_text()) for folder in "sb"]
    assert tables[0]["regions"] == {"cord": ["white matter", "grey matter"], "grey matter": ["grey matter"]}
    assert "regions" not in tables[1]
    assert open_federation(tmp_path / "s").task.judged == {"cord": (1, 2), "grey matter": (2,)}


def test_federation_toml_says_what_it_is(tmp_path: Path) -> None:
    write_demo("tumour", tmp_path / "f", size=16, cases=1)
    table = tomllib.loads((tmp_path / "f/federation.toml").read_text())
    assert table["classes"] == ["background", "tumour"]
    assert table["spatial_dims"] == 3


def test_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(PolyclinicError, match="not empty"):
        write_demo("nuclei", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_refuses_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyclinicError, match="choose another folder"):
        write_demo("nuclei", tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "hint"), [("nucle", "did you mean 'nuclei'"), ("xyz", "choose one of nuclei, prostate")]
)
def test_unknown_name_gets_a_suggestion(name: str, hint: str, tmp_path: Path) -> None:
    for call in (lambda: write_demo(name, tmp_path / "f"), lambda: demo_folder(name)):
        with pytest.raises(PolyclinicError, match=hint):
            call()
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("size", [(64,), (64, 64, 64), (2, 64), 1])
def test_wrong_size_is_refused(size: int | tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="expected 2 lengths"):
        write_demo("nuclei", tmp_path / "f", size=size)
    with pytest.raises(PolyclinicError, match="at least 1"):
        write_demo("nuclei", tmp_path / "f", cases=0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder, and a nuclei demo that is quick to draw."""
    monkeypatch.setenv("POLYCLINIC_CACHE", str(tmp_path / "cache"))
    cases = dict.fromkeys(DEMOS["nuclei"].cases, 1)
    monkeypatch.setitem(DEMOS, "nuclei", dataclasses.replace(DEMOS["nuclei"], cases=cases, size=(16, 16)))
    return tmp_path / "cache"


def test_demo_folder_is_drawn_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_folder("nuclei")
    assert folder == tiny / "demo" / f"nuclei-{demo_files.VERSION}"
    assert (folder / "manifest.csv").is_file()
    monkeypatch.setattr(demo_files, "write_demo", lambda *_: pytest.fail("drawn again"))
    assert demo_folder("nuclei") == folder
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_demo_folder_is_never_half_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(name: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "federation.toml").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(demo_files, "write_demo", breaks)
    with pytest.raises(PolyclinicError, match="POLYCLINIC_CACHE"):
        demo_folder("nuclei")
    assert list((tiny / "demo").iterdir()) == []
    monkeypatch.undo()


def test_two_at_once_get_the_same_whole_folder(tiny: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(demo_folder, ["nuclei"] * 4))
    assert len(set(folders)) == 1
    assert [p.name for p in folders[0].parent.iterdir()] == [folders[0].name]
    assert len(list(folders[0].rglob("*.png"))) == 4 * 2 * 2


def test_the_loser_of_a_race_keeps_the_winners_files(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(name: str, folder: Path) -> None:
        write_demo(name, folder)
        winner = tiny / "demo" / f"nuclei-{demo_files.VERSION}"
        winner.mkdir()
        (winner / "winner").write_text("")

    monkeypatch.setattr(demo_files, "write_demo", slow)
    folder = demo_folder("nuclei")
    assert [p.name for p in folder.iterdir()] == ["winner"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_files_hold_what_is_drawn(tmp_path: Path) -> None:
    """The tests of single phantoms draw an image without writing files; this is the same image."""
    for name, site, file in (("nuclei", "hospital-b", "case-001-1.png"), ("tumour", "hospital-c", "case-001.nii.gz")):
        write_demo(name, tmp_path / name, cases=1)
        path = tmp_path / name / site / "images" / file
        image = np.asarray(Image.open(path)) if path.suffix == ".png" else nibabel.load(path).get_fdata()
        assert np.array_equal(image, first_image(name, site).image)
