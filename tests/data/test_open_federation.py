"""A federation opens by its folder: sites, images, cases, and a sentence for what is no federation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_support import two_sites, write_picture
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import prepare, resolve_size
from polyclinic.data.splits import assign_splits
from polyclinic.recipe import DataSettings

REAL = os.environ.get("POLYCLINIC_REAL_DATA")
REAL_NAMES = (
    "brain_lgg", "brain_lgg3d", "cardiac3d", "cardiac_lv",
    "hippocampus3d", "nuclei_xmod", "prostate3d", "retina_vessel",
)  # fmt: skip


def test_a_plain_folder_needs_no_description(tmp_path: Path) -> None:
    federation = open_federation(two_sites(tmp_path))
    assert list(federation.sites) == ["east", "north"]
    assert [item.name for item in federation.sites["east"]] == ["a", "b", "c"]
    assert [item.label is not None for item in federation.sites["east"]] == [True, True, False]
    assert federation.name == tmp_path.name
    assert federation.task.classes == ("background", "class 1")
    assert (federation.task.channels, federation.task.spatial_dims) == (3, 2)
    assert not federation.volumes_as_slices


@pytest.mark.parametrize(
    ("stem", "case"),
    [
        ("TCGA_CS_4941_s09", "TCGA_CS_4941"),
        ("p1_frame12_z07", "p1_frame12"),
        ("p1-slice012", "p1"),
        ("p1_12", "p1_12"),
        ("p1s09", "p1s09"),
        ("p1_s09_left", "p1_s09_left"),
    ],
)
def test_slices_are_grouped_by_default(tmp_path: Path, stem: str, case: str) -> None:
    write_picture(tmp_path / f"a/images/{stem}.png", np.zeros((4, 4)))
    write_picture(tmp_path / f"a/labels/{stem}.png", np.zeros((4, 4)))
    assert open_federation(tmp_path).sites["a"][0].case == case


def test_the_recipes_case_pattern_beats_the_federations(tmp_path: Path) -> None:
    write_picture(tmp_path / "a/images/p12_left_3.png", np.zeros((4, 4)))
    (tmp_path / "federation.toml").write_text("classes = ['background', 'x']\ncase_pattern = '^(.*)_'")
    assert open_federation(tmp_path).sites["a"][0].case == "p12_left"
    assert open_federation(tmp_path, DataSettings(case_pattern="^p([0-9]+)")).sites["a"][0].case == "12"
    for pattern, words in (("^q(.)", "does not match the image"), ("p12", "has no group"), ("(", "regular expression")):
        with pytest.raises(PolyclinicError, match=words):
            open_federation(tmp_path, DataSettings(case_pattern=pattern))


def test_the_recipe_chooses_sites(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text("site,image,split\neast,a,val\nnorth,a,test\n")
    assert list(open_federation(tmp_path, DataSettings(sites=("north",))).sites) == ["north"]
    with pytest.raises(
        PolyclinicError, match=r"data.sites: no site 'nroth', did you mean 'north'\? Sites: east, north"
    ):
        open_federation(tmp_path, DataSettings(sites=("nroth",)))
    (tmp_path / "federation.toml").write_text('sites = ["east"]')
    with pytest.raises(PolyclinicError, match=r"data\.sites: no site 'north'"):
        open_federation(tmp_path, DataSettings(sites=("north",)))


def test_wrong_folders_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="no such folder"):
        open_federation(tmp_path / "nowhere")
    with pytest.raises(PolyclinicError, match="holds no site"):
        open_federation(tmp_path)
    with pytest.raises(PolyclinicError, match="is a single site"):
        open_federation(two_sites(tmp_path) / "north")
    (tmp_path / "notes").mkdir()
    with pytest.raises(PolyclinicError, match=r"notes: site without images.*'sites'"):
        open_federation(tmp_path)


@pytest.mark.parametrize("name", ["=cmd()", "+1+cmd", "-2+3", "@SUM(A1)"])
def test_names_that_a_spreadsheet_would_compute_are_refused(name: str, tmp_path: Path) -> None:
    """Names stand in the first columns of cases.csv, split.csv and the tables."""
    folder = two_sites(tmp_path / "case")
    (folder / "manifest.csv").write_text(f"site,image,case\nnorth,a,{name}\n")
    with pytest.raises(PolyclinicError, match=r"north: the case '.*' begins with '.', which a spreadsheet takes"):
        open_federation(folder)
    (two_sites(tmp_path / "site") / "north").rename(tmp_path / "site" / name)
    with pytest.raises(PolyclinicError, match=r"the site '.*' begins with"):
        open_federation(tmp_path / "site")
    (two_sites(tmp_path / "class") / "federation.toml").write_text(f'classes = ["background", "{name}"]')
    with pytest.raises(PolyclinicError, match=r"the class or region '.*' begins with"):
        open_federation(tmp_path / "class")


def test_numbers_with_a_sign_are_names(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "north").rename(tmp_path / "-7")
    assert list(open_federation(tmp_path).sites) == ["-7", "east"]


def test_hidden_folders_are_no_sites(tmp_path: Path) -> None:
    (two_sites(tmp_path) / ".cache").mkdir()
    (tmp_path / "__pycache__").mkdir()
    assert list(open_federation(tmp_path).sites) == ["east", "north"]


def test_a_demo_is_opened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sites(tmp_path / "polyps")
    phantoms = SimpleNamespace(demo_folder=lambda name: tmp_path / name)
    monkeypatch.setitem(sys.modules, "polyclinic.data.phantoms", phantoms)
    assert open_federation("demo:polyps").name == "polyps"


@pytest.mark.skipif(not REAL, reason="set POLYCLINIC_REAL_DATA to the folder of the real federations")
@pytest.mark.parametrize("name", REAL_NAMES)
def test_real_federations_open_as_they_are(name: str) -> None:
    federation = open_federation(Path(str(REAL)) / name)
    split = assign_splits(federation, DataSettings(), seed=0)
    size = resolve_size(federation, DataSettings(), 16)
    settings = DataSettings(size=size)
    for site, items in federation.sites.items():
        assert {split.of[site, item.name] for item in items} == {"train", "val", "test"}
        prepared = prepare(items[0], federation, settings)[0]
        assert prepared.image.shape == (federation.task.channels, *size)
        assert prepared.label is not None
        assert prepared.label.shape == size
        assert int(prepared.label.max()) < len(federation.task.classes)
