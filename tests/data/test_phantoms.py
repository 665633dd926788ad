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
from scipy import ndimage

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import phantoms
from polyclinic.data.open_federation import open_federation
from polyclinic.data.phantoms import DEMOS, demo_folder, drawing, write_demo
from polyclinic.data.readers import read_image, read_label

SMALL = {
    "nuclei": (32, 32), "prostate": (32, 32, 6), "tumour": (16, 16, 16), "pathology": (32, 32),
    "cardiac": (32, 32, 4), "spine": (32, 32, 4), "bladder": (32, 32, 4),
}  # fmt: skip
FEW_LABELS = ("cardiac", "spine", "bladder")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", DEMOS)
def test_same_seed_same_bytes_other_seed_other_images(name: str, tmp_path: Path) -> None:
    for folder, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_demo(name, tmp_path / folder, seed=seed, size=SMALL[name], cases=1)
    one, two, other = (contents(tmp_path / folder) for folder in ("one", "two", "other"))
    assert one == two
    assert one.keys() == other.keys()
    images = [file for file in one if "/images/" in file]
    assert images
    assert all(one[file] != other[file] for file in images)


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
    assert phantoms._splits(count) == expected.split()


def test_volumes_keep_their_spacing_and_field_of_view(tmp_path: Path) -> None:
    write_demo("prostate", tmp_path / "small", size=32, cases=1)
    write_demo("prostate", tmp_path / "large", size=64, cases=1)
    for site, (plane, depth) in {"hospital-a": (1.0, 3.0), "hospital-b": (1.1, 3.3)}.items():
        small, large = (nibabel.load(tmp_path / f / site / "images/case-001.nii.gz") for f in ("small", "large"))
        assert large.shape == (64, 64, 10)
        assert large.header.get_zooms() == pytest.approx((plane, plane, depth))
        assert small.shape == (32, 32, 10)
        assert small.header.get_zooms() == pytest.approx((2 * plane, 2 * plane, depth))


def test_sites_have_unequal_numbers_of_cases() -> None:
    for demo in DEMOS.values():
        assert len(set(demo.cases.values())) >= 3


def test_images_of_version_1_look_as_they_did(tmp_path: Path) -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    write_demo("nuclei", tmp_path / "n", cases=1)
    write_demo("prostate", tmp_path / "p", cases=1)
    write_demo("tumour", tmp_path / "t", cases=1)
    write_demo("pathology", tmp_path / "y", cases=1)
    picture = np.asarray(Image.open(tmp_path / "n/hospital-b/images/case-001-1.png"), dtype=float)
    volume = nibabel.load(tmp_path / "p/hospital-c/images/case-001.nii.gz").get_fdata()
    head = nibabel.load(tmp_path / "t/hospital-c/images/case-001.nii.gz").get_fdata()
    sites = ("source-3", "modality-fluorescence", "organ-pancreas", "scanner-3")
    slides = [np.asarray(Image.open(tmp_path / f"y/{site}/images/case-001-1.png"), dtype=float) for site in sites]
    assert phantoms.VERSION == 1
    assert picture.mean(axis=(0, 1)) == pytest.approx([142.5, 104.2, 164.5], abs=0.5)
    assert volume.mean() == pytest.approx(964.9, rel=0.005)
    assert head.mean(axis=(0, 1, 2)) == pytest.approx([593.4, 581.0, 633.9, 694.7], rel=0.005)
    assert [slide.mean() for slide in slides] == pytest.approx([205.3, 67.1, 191.7, 168.9], abs=0.5)


def test_pathology_has_the_groups_of_table_1() -> None:
    groups = defaultdict(list)
    for site in DEMOS["pathology"].cases:
        groups[site.split("-")[0]].append(site)
    assert {group: len(sites) for group, sites in groups.items()} == {
        "source": 7, "modality": 3, "organ": 3, "scanner": 3,
    }  # fmt: skip


def test_scanners_see_the_same_tissue_differently() -> None:
    one, *others = (
        phantoms.pathology.draw(np.random.default_rng(1), f"scanner-{number}", (64, 64)) for number in (1, 2, 3)
    )
    for other in others:
        assert np.array_equal(one.mask, other.mask)
        assert np.abs(one.image.astype(float) - other.image).mean() > 10


def test_tumours_of_organs_differ_in_architecture() -> None:
    outline = {}
    for site in ("organ-colorectum", "organ-pancreas", "organ-stomach"):
        masks = [phantoms.pathology.draw(np.random.default_rng(seed), site, (64, 64)).mask for seed in range(4)]
        outline[site] = np.mean([(np.diff(mask, axis=0) != 0).sum() for mask in masks])
    assert outline["organ-pancreas"] > 1.3 * outline["organ-colorectum"] > 1.1 * 1.3 * outline["organ-stomach"]


@pytest.mark.parametrize("site", DEMOS["pathology"].cases)
def test_only_fluorescence_is_bright_on_dark(site: str) -> None:
    drawing = phantoms.pathology.draw(np.random.default_rng(2), site, (64, 64))
    grey = drawing.image.mean(axis=2)
    bright = grey[drawing.mask > 0].mean() > grey[drawing.mask == 0].mean()
    # A gland is marked with its empty lumen, so it may be brighter than the tissue around it.
    assert bright == (site == "modality-fluorescence") or site in ("source-3", "source-5")


def test_images_of_the_few_label_demos_look_as_they_did(tmp_path: Path) -> None:
    means = {}
    for name in FEW_LABELS:
        write_demo(name, tmp_path / name, cases=1)
        folders = sorted(path for path in (tmp_path / name).iterdir() if path.is_dir())
        volumes = [nibabel.load(folder / "images/case-001.nii.gz").get_fdata() for folder in folders]
        means[name] = [volume.mean() for volume in volumes]
    assert phantoms.VERSION == 1
    assert means["cardiac"] == pytest.approx([347.0, 171.9, 845.7, 59.1], rel=0.005)
    assert means["spine"] == pytest.approx([375.5, 103.7, 907.8, 239.1], rel=0.005)
    assert means["bladder"] == pytest.approx([386.2, 186.3, 426.3, 262.2], rel=0.005)


@pytest.mark.parametrize("name", FEW_LABELS)
def test_sites_scan_the_same_anatomy_differently(name: str) -> None:
    module, size = getattr(phantoms, name), DEMOS[name].size
    # Pixels of one width: what is left of the difference is the scanner alone.
    seen = []
    for style in module.STYLES.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(module.STYLES, "here", dataclasses.replace(style, spacing=(module.PIXEL, 5.0)))
            seen.append(module.draw(np.random.default_rng(1), "here", size))
    assert all(np.array_equal(seen[0].mask, other.mask) for other in seen)
    ranked = [np.argsort(np.argsort(one.image.ravel())) for one in seen]
    correlations = [np.corrcoef(a, b)[0, 1] for i, a in enumerate(ranked) for b in ranked[:i]]
    assert np.mean(correlations) < 0.85
    assert len({tuple(np.argsort(style.intensities)) for style in module.STYLES.values()}) == 4


def test_ventricles_lie_as_in_a_heart() -> None:
    for seed in range(20):
        mask = phantoms.cardiac.draw(np.random.default_rng(seed), "vendor-a", (64, 64, 4)).mask
        left, wall, right = (mask == number for number in (1, 2, 3))
        assert all(part.any(axis=(0, 1)).all() for part in (left, wall, right))
        # Nothing but myocardium touches the left ventricle.
        around = ndimage.binary_dilation(left, np.ones((3, 3, 1))) & ~left
        assert (mask[around] == 2).all()
        assert left[..., -1].sum() > left[..., 0].sum()
        assert np.argwhere(right)[:, 0].mean() < np.argwhere(left)[:, 0].mean()


def test_grey_matter_is_a_butterfly_inside_the_cord() -> None:
    for seed in range(20):
        mask = phantoms.spine.draw(np.random.default_rng(seed), "site-1", (64, 64, 4)).mask
        cord, grey = mask > 0, mask == 2
        eroded = ndimage.binary_erosion(cord, np.ones((3, 3, 1)), border_value=1)
        assert (grey <= eroded).mean() > 0.998
        assert 0.15 < grey.sum() / cord.sum() < 0.5
        for z in range(4):
            assert ndimage.label(cord[..., z])[1] == 1
            assert ndimage.label(grey[..., z], np.ones((3, 3)))[1] == 1


def test_tumours_vary_in_size_and_place() -> None:
    masks = [phantoms.bladder.draw(np.random.default_rng(s), "centre-1", (64, 64, 4)).mask for s in range(40)]
    sizes = [int(mask.sum()) for mask in masks]
    assert min(sizes) > 20
    assert max(sizes) > 5 * min(sizes)
    assert max(sizes) < 0.15 * masks[0].size
    places = np.stack([np.argwhere(mask)[:, :2].mean(0) for mask in masks])
    assert (places.std(0) > 6).all()


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
    assert folder == tiny / "demo" / f"nuclei-{phantoms.VERSION}"
    assert (folder / "manifest.csv").is_file()
    monkeypatch.setattr(phantoms, "write_demo", lambda *_: pytest.fail("drawn again"))
    assert demo_folder("nuclei") == folder
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_demo_folder_is_never_half_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(name: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "federation.toml").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(phantoms, "write_demo", breaks)
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
        winner = tiny / "demo" / f"nuclei-{phantoms.VERSION}"
        winner.mkdir()
        (winner / "winner").write_text("")

    monkeypatch.setattr(phantoms, "write_demo", slow)
    folder = demo_folder("nuclei")
    assert [p.name for p in folder.iterdir()] == ["winner"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_ellipse_has_level_one_on_its_outline() -> None:
    axes = drawing.coordinates((101, 101))
    level, _ = drawing.ellipse(axes, (0.1, -0.2), (0.5, 0.25), np.pi / 2)
    # Turned by a quarter, the long radius lies along the second axis.
    row, column = (int(np.argmin(np.abs(axis - place))) for axis, place in ((axes[0][:, 0], 0.1), (axes[1][0], 0.3)))
    assert level[row, column] == pytest.approx(1.0, abs=0.05)
    row = int(np.argmin(np.abs(axes[0][:, 0] - 0.35)))
    column = int(np.argmin(np.abs(axes[1][0] + 0.2)))
    assert level[row, column] == pytest.approx(1.0, abs=0.05)


def test_smooth_noise_is_standardised_and_smooth() -> None:
    noise = drawing.smooth_noise(np.random.default_rng(0), (64, 64), 3.0)
    assert noise.mean() == pytest.approx(0, abs=1e-4)
    assert noise.std() == pytest.approx(1, abs=1e-4)
    neighbours = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert neighbours > 0.9
