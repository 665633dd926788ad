from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
from PIL import Image as PILImage

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


def picture(path: Path, array: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PILImage.fromarray(np.asarray(array, dtype=np.uint8)).save(path)


def volume(path: Path, shape: tuple[int, ...] = (6, 5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), path)


def two_sites(root: Path) -> Path:
    for site in ("north", "east"):
        for name in ("a", "b", "c"):
            picture(root / site / "images" / f"{name}.png", np.zeros((8, 6, 3)))
            if name != "c":
                picture(root / site / "labels" / f"{name}.png", np.eye(8, 6) * 255)
    return root


def test_a_plain_folder_needs_no_description(tmp_path: Path) -> None:
    federation = open_federation(two_sites(tmp_path))
    assert list(federation.sites) == ["east", "north"]
    assert [item.name for item in federation.sites["east"]] == ["a", "b", "c"]
    assert [item.label is not None for item in federation.sites["east"]] == [True, True, False]
    assert federation.name == tmp_path.name
    assert federation.task.classes == ("background", "class 1")
    assert (federation.task.channels, federation.task.spatial_dims) == (3, 2)
    assert not federation.volumes_as_slices


def test_classes_come_from_label_values(tmp_path: Path) -> None:
    picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    picture(tmp_path / "a/labels/x.png", [[0, 3], [0, 0]])
    assert open_federation(tmp_path).task.classes == ("background", "class 1", "class 2", "class 3")


def test_grey_levels_are_not_taken_for_classes(tmp_path: Path) -> None:
    picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    picture(tmp_path / "a/labels/x.png", [[0, 128], [255, 0]])
    with pytest.raises(PolyclinicError, match=r"values up to 255.*write 'classes'"):
        open_federation(tmp_path)


def test_the_description_is_used(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "federation.toml").write_text(
        'name = "mine"\nclasses = ["background", "tumour"]\nmodality = "MR"\nchannels = 1\nspacing = [0.5, 0.25]\n'
        'spatial_dims = 2\nsites = ["north"]\n'
    )
    federation = open_federation(tmp_path)
    assert (federation.name, list(federation.sites)) == ("mine", ["north"])
    task = federation.task
    assert (task.classes, task.modality, task.channels) == (("background", "tumour"), "MR", 1)
    assert task.spacing == (0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clases = []", "unknown key 'clases', did you mean 'classes'"),
        ("colour = 3", "unknown key 'colour'; known keys are"),
        ('classes = ["tumour"]', "'classes' is .*background first"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["tt"]', "region 'whole' names 'tt', did you mean 't'"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["b"]', "region 'whole' names 'b'; a region is made of .* t"),
        ('classes = ["b", "t"]\n[regions]\nwhole = ["t", "t"]', "the region 'whole' names a class twice"),
        ('classes = ["b", "t"]\n[regions]\nwhole = []', r"'regions' is .*write a table \[regions\]"),
        ('classes = ["a", "a"]', "'classes' is .*differ"),
        ("spatial_dims = 4", "'spatial_dims' is 4.*write 2 or 3"),
        ("name = ", "cannot be read as TOML"),
        ("spacing = [1.0, 1.0, 1.0]", "'spacing' has 3 numbers, but the files have 2 axes"),
        ('sites = ["nroth"]', "'sites' names 'nroth'"),
        ("spatial_dims = 3", "the task is 3D, but the images of site 'east' are 2D"),
    ],
)
def test_a_wrong_description_gets_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    (two_sites(tmp_path) / "federation.toml").write_text(text)
    with pytest.raises(PolyclinicError, match=words):
        open_federation(tmp_path)


def test_volumes_make_a_3d_task(tmp_path: Path) -> None:
    volume(tmp_path / "a/images/x.nii.gz", (6, 5, 4, 2))
    volume(tmp_path / "a/labels/x.nii.gz")
    task = open_federation(tmp_path).task
    assert (task.spatial_dims, task.channels, task.classes) == (3, 2, ("background", "class 1"))


def test_a_2d_task_cuts_volumes_and_counts_neighbours(tmp_path: Path) -> None:
    volume(tmp_path / "a/images/x.nii.gz", (6, 5, 4, 2))
    (tmp_path / "federation.toml").write_text('spatial_dims = 2\nclasses = ["background", "x"]')
    federation = open_federation(tmp_path, DataSettings(neighbours=1))
    assert federation.volumes_as_slices
    assert (federation.task.channels, federation.task.image_channels) == (6, 2)


def test_neighbours_need_volumes(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"data\.neighbours"):
        open_federation(two_sites(tmp_path), DataSettings(neighbours=1))


def test_a_third_axis_of_one_is_a_2d_image(tmp_path: Path) -> None:
    volume(tmp_path / "a/images/x.nii.gz", (6, 5, 1))
    volume(tmp_path / "a/labels/x.nii.gz", (6, 5, 1))
    federation = open_federation(tmp_path)
    assert federation.task.spatial_dims == 2
    assert prepare(federation.sites["a"][0], federation, DataSettings())[0].image.shape == (1, 6, 5)


def test_sites_must_agree_on_dimensions(tmp_path: Path) -> None:
    volume(tmp_path / "a/images/x.nii.gz")
    picture(tmp_path / "b/images/x.png", np.zeros((4, 4)))
    with pytest.raises(PolyclinicError, match="site 'b' has 2D images and site 'a' volumes"):
        open_federation(tmp_path)


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
    picture(tmp_path / f"a/images/{stem}.png", np.zeros((4, 4)))
    picture(tmp_path / f"a/labels/{stem}.png", np.zeros((4, 4)))
    assert open_federation(tmp_path).sites["a"][0].case == case


def test_the_recipes_case_pattern_beats_the_federations(tmp_path: Path) -> None:
    picture(tmp_path / "a/images/p12_left_3.png", np.zeros((4, 4)))
    (tmp_path / "federation.toml").write_text("classes = ['background', 'x']\ncase_pattern = '^(.*)_'")
    assert open_federation(tmp_path).sites["a"][0].case == "p12_left"
    assert open_federation(tmp_path, DataSettings(case_pattern="^p([0-9]+)")).sites["a"][0].case == "12"
    for pattern, words in (("^q(.)", "does not match the image"), ("p12", "has no group"), ("(", "regular expression")):
        with pytest.raises(PolyclinicError, match=words):
            open_federation(tmp_path, DataSettings(case_pattern=pattern))


def test_the_manifest_gives_cases_and_splits(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text(
        "\ufeffsite;image;case;split;age\neast;a.png;P1;train;7\neast;b;P2;;8\nnorth;c;;test;9\n", encoding="utf-8"
    )
    east, north = open_federation(tmp_path).sites.values()
    assert [(item.case, item.split) for item in east] == [("P1", "train"), ("P2", None), ("c", None)]
    assert (north[2].case, north[2].split) == ("c", "test")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("site,image\neast,a\neast,z", "row 3 names the image 'z', which site 'east' does not have"),
        ("site,image\neats,a", "row 2 names the site 'eats', which has no folder, did you mean 'east'"),
        ("site,image\neast,a\neast,a.png", "row 3 .* a second time"),
        ("site,image,split\neast,a,training", "row 2 has the split 'training'"),
        ("image,case\na,b", "no column 'site'"),
    ],
)
def test_a_wrong_manifest_names_the_row(tmp_path: Path, rows: str, words: str) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text(rows)
    with pytest.raises(PolyclinicError, match=words):
        open_federation(tmp_path)


def test_manifest_rows_of_sites_left_out_are_skipped(tmp_path: Path) -> None:
    (two_sites(tmp_path) / "manifest.csv").write_text("site,image,split\neast,a,val\nnorth,a,test\n")
    (tmp_path / "federation.toml").write_text('sites = ["north"]')
    assert open_federation(tmp_path).sites["north"][0].split == "test"


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


def test_hidden_folders_are_no_sites(tmp_path: Path) -> None:
    (two_sites(tmp_path) / ".cache").mkdir()
    (tmp_path / "__pycache__").mkdir()
    assert list(open_federation(tmp_path).sites) == ["east", "north"]


def test_no_label_at_all_leaves_the_classes_unknown(tmp_path: Path) -> None:
    picture(tmp_path / "a/images/x.png", np.zeros((4, 4)))
    with pytest.raises(PolyclinicError, match="the classes are unknown"):
        open_federation(tmp_path)


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
