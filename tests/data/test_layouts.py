from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.check import check_federation
from polyclinic.data.federation import Task
from polyclinic.data.layouts import find_site
from polyclinic.data.open_federation import open_federation
from polyclinic.data.readers import read_image, read_label


def volume(path: Path, shape: tuple[int, ...] = (4, 5, 3), value: float = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.full(shape, value, np.float32), np.eye(4)), path)


def nnunet(site: Path, cases: tuple[str, ...] = ("p1", "p2"), channels: int = 2) -> Path:
    for case in cases:
        for channel in range(channels):
            volume(site / f"imagesTr/{case}_{channel:04d}.nii.gz", value=channel + 1)
    volume(site / f"labelsTr/{cases[0]}.nii.gz", value=2)
    return site


def describe(site: Path, **keys: object) -> None:
    site.mkdir(parents=True, exist_ok=True)
    (site / "dataset.json").write_text(json.dumps(keys))


def test_nnunet_channels_become_one_image(tmp_path: Path) -> None:
    describe(nnunet(tmp_path / "a"), labels={"background": 0, "zone": 1, "core": 2}, file_ending=".nii.gz")
    federation = open_federation(tmp_path)
    one, two = federation.sites["a"]
    assert [path.name for path in one.images] == ["p1_0000.nii.gz", "p1_0001.nii.gz"]
    assert one.label is not None
    assert two.label is None
    assert (federation.task.classes, federation.task.channels) == (("background", "zone", "core"), 2)
    array = read_image(one, federation.task).array
    assert array.shape == (2, 4, 5, 3)
    assert (array[0] == 1).all()
    assert (array[1] == 2).all()
    assert (read_label(one, federation.task) == 2).all()


def test_nnunet_version_1_lists_images_without_channels(tmp_path: Path) -> None:
    labels = {"0": "background", "1": "zone", "2": "core"}
    training = [{"image": "./imagesTr/p1.nii.gz", "label": "./labelsTr/p1.nii.gz"}]
    describe(nnunet(tmp_path / "a"), labels=labels, training=training)
    site = find_site(tmp_path / "a")
    assert site.classes == ("background", "zone", "core")
    assert [len(found.images) for found in site.images] == [2, 2]


def test_nnunet_needs_no_dataset_json(tmp_path: Path) -> None:
    site = find_site(nnunet(tmp_path / "a", channels=1))
    assert site.classes is None
    assert [found.name for found in site.images] == ["p1", "p2"]


def test_a_missing_channel_is_named(tmp_path: Path) -> None:
    (nnunet(tmp_path / "a") / "imagesTr/p2_0000.nii.gz").unlink()
    with pytest.raises(PolyclinicError, match="image 'p2' has the channels 0001, but others have 0000 to 0001"):
        find_site(tmp_path / "a")


def test_a_missing_channel_is_zeros_where_the_federation_says_so(tmp_path: Path) -> None:
    nnunet(tmp_path / "a", channels=2)
    (nnunet(tmp_path / "b", channels=3) / "imagesTr/p2_0001.nii.gz").unlink()
    describe(tmp_path / "b", labels={"background": 0, "whole": [1, 2]})
    table = 'missing_channels = "zeros"\n[labels]\ntumour = [1, 2]\n'
    (tmp_path / "federation.toml").write_text(table)
    federation = open_federation(tmp_path)
    assert federation.task == Task(("background", "tumour"), 3, 3, zero_fill=True)
    short, whole, gap = (federation.sites[site][n] for site, n in (("a", 0), ("b", 0), ("b", 1)))
    values = [read_image(item, federation.task).array[:, 0, 0, 0].tolist() for item in (short, whole, gap)]
    assert values == [[1, 2, 0], [1, 2, 3], [1, 0, 3]]
    assert read_label(whole, federation.task).max() == 1
    report = check_federation(tmp_path)
    assert not report.errors
    (tmp_path / "federation.toml").write_text("channels = 2\n" + table)
    with pytest.raises(PolyclinicError, match="are numbered up to 0002, but the task has 2"):
        read_image(open_federation(tmp_path).sites["b"][1], open_federation(tmp_path).task)


def test_labels_of_a_site_may_mean_something_else(tmp_path: Path) -> None:
    for site in "ab":
        nnunet(tmp_path / site)
    (tmp_path / "federation.toml").write_text("[labels]\nzone = [1]\ncore = [2]\n[site_labels.b]\nzone = [2]\n")
    federation = open_federation(tmp_path)
    assert federation.task.classes == ("background", "zone", "core")
    assert [int(read_label(federation.sites[site][0], federation.task).max()) for site in "ab"] == [2, 1]
    (tmp_path / "federation.toml").write_text("[labels]\nzone = [1]\n")
    with pytest.raises(PolyclinicError, match=r"p1\.nii\.gz: holds the undeclared label values 2; .*\[labels\]"):
        read_label(open_federation(tmp_path).sites["a"][0], open_federation(tmp_path).task)
    (tmp_path / "federation.toml").write_text('classes = ["background", "x"]\n[labels]\nzone = [1]\n')
    with pytest.raises(PolyclinicError, match=r"federation\.toml: \[labels\] gives values to 'zone'"):
        open_federation(tmp_path)
    assert any("gives values to 'zone'" in problem.sentence for problem in check_federation(tmp_path).errors)


def test_decathlon_lists_its_training_images(tmp_path: Path) -> None:
    site = tmp_path / "a"
    for name in ("brain_001", "brain_002", "brain_003"):
        volume(site / f"imagesTr/{name}.nii.gz", (4, 5, 3, 4))
        volume(site / f"labelsTr/{name}.nii.gz", value=1)
    (site / "imagesTr/._brain_001.nii.gz").write_bytes(b"junk of a Mac")
    volume(site / "imagesTs/brain_009.nii.gz", (4, 5, 3, 4))
    pairs = [{"image": f"./imagesTr/brain_00{n}.nii.gz", "label": f"./labelsTr/brain_00{n}.nii.gz"} for n in (2, 1)]
    describe(site, labels={"0": "background", "1": "tumour"}, training=pairs, test=["./imagesTs/brain_009.nii.gz"])
    federation = open_federation(tmp_path)
    assert [item.name for item in federation.sites["a"]] == ["brain_001", "brain_002"]
    assert (federation.task.channels, federation.task.spatial_dims) == (4, 3)
    assert federation.task.classes == ("background", "tumour")
    assert read_image(federation.sites["a"][0], federation.task).array.shape == (4, 4, 5, 3)


def test_decathlon_names_with_four_digits_are_not_channels(tmp_path: Path) -> None:
    for name in ("liver_0000", "liver_0001"):
        volume(tmp_path / f"imagesTr/{name}.nii.gz")
        volume(tmp_path / f"labelsTr/{name}.nii.gz")
    assert [found.name for found in find_site(tmp_path).images] == ["liver_0000", "liver_0001"]


def test_a_listed_file_that_is_missing_is_named(tmp_path: Path) -> None:
    volume(tmp_path / "imagesTr/x.nii.gz")
    describe(tmp_path, training=[{"image": "./imagesTr/y.nii.gz"}])
    with pytest.raises(PolyclinicError, match=r"dataset\.json: lists .*y\.nii\.gz, which does not exist"):
        find_site(tmp_path)


@pytest.mark.parametrize(
    "labels", [{"background": 0, "whole": [1, 2]}, {"0": "background", "2": "x"}, {"background": 0, "ignore": 1}]
)
def test_labels_that_are_not_plain_classes_are_refused(tmp_path: Path, labels: dict[str, object]) -> None:
    describe(nnunet(tmp_path), labels=labels)
    with pytest.raises(PolyclinicError, match="'labels' must give one name to each"):
        find_site(tmp_path)


def test_sites_with_different_classes_are_refused(tmp_path: Path) -> None:
    describe(nnunet(tmp_path / "a"), labels={"background": 0, "x": 1})
    describe(nnunet(tmp_path / "b"), labels={"background": 0, "y": 1})
    with pytest.raises(PolyclinicError, match="'a' and 'b' declare different classes"):
        open_federation(tmp_path)


def test_duplicates_strays_and_unknown_formats_are_named(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.mkdir()
    labels.mkdir()
    with pytest.raises(PolyclinicError, match="site without images"):
        find_site(tmp_path)
    (images / "x.png").touch()
    (images / "Thumbs.db").touch()
    (images / ".DS_Store").touch()
    assert [found.name for found in find_site(tmp_path).images] == ["x"]
    (images / "x.tif").touch()
    with pytest.raises(PolyclinicError, match=r"x\.tif: has the same name as x\.png"):
        find_site(tmp_path)
    (images / "x.tif").unlink()
    (labels / "y.png").touch()
    with pytest.raises(PolyclinicError, match=r"y\.png: label without an image"):
        find_site(tmp_path)
    (labels / "y.png").unlink()
    (images / "notes.txt").touch()
    with pytest.raises(PolyclinicError, match=r"notes\.txt: unknown format"):
        find_site(tmp_path)


def test_raw_voxels_beside_an_mhd_header_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("x.mhd", "x.raw"):
        (tmp_path / "images" / name).touch()
    assert [found.images[0].name for found in find_site(tmp_path).images] == ["x.mhd"]
