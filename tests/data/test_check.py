from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from polyclinic.data.check import CheckReport, check_federation
from polyclinic.data.phantoms import write_demo
from polyclinic.recipe import DataSettings


def draw(path: Path, seed: int, size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8)
    Image.fromarray(values).save(path)


def mask(path: Path, value: int = 1, size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.zeros(size, np.uint8)
    values[2:6, 3:7] = value
    Image.fromarray(values).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with three labelled grey images each."""
    root = tmp_path / "fed"
    for number, site in enumerate(("north", "south")):
        for index in range(3):
            draw(root / site / "images" / f"p{index}.png", 10 * number + index)
            mask(root / site / "labels" / f"p{index}.png")
    (root / "federation.toml").write_text('classes = ["background", "organ"]\n')
    return root


def found(report: CheckReport, severity: str) -> list[tuple[str, str]]:
    return [(p.site, p.file) for p in report.problems if p.severity == severity]


def test_a_clean_federation_has_no_problems(folder: Path) -> None:
    report = check_federation(folder)
    assert report.problems == ()
    assert [row.site for row in report.rows] == ["north", "south"]
    assert all((row.images, row.cases, row.labelled) == (3, 3, 3) for row in report.rows)
    assert report.rows[0].sizes == ((12, 10), (12, 10))
    assert report.rows[0].spacings is None
    assert report.rows[0].classes == ("background", "organ")


def test_intensities_are_those_of_all_pixels(folder: Path) -> None:
    draw(folder / "north/images/p1.png", 5, (20, 8))
    mask(folder / "north/labels/p1.png", size=(20, 8))
    values = np.concatenate([np.asarray(Image.open(p)).ravel() for p in (folder / "north/images").iterdir()])
    row = check_federation(folder).rows[0]
    assert row.mean == pytest.approx(values.mean())
    assert row.std == pytest.approx(values.std())
    assert (row.minimum, row.maximum) == (values.min(), values.max())
    assert row.sizes == ((12, 8), (20, 10))


def test_volumes_report_their_spacing(tmp_path: Path) -> None:
    write_demo("prostate", tmp_path / "f", size=16, cases=2)
    rows = {row.site: row for row in check_federation(tmp_path / "f").rows}
    assert rows["hospital-b"].spacings == (pytest.approx((4.4, 4.4, 3.3)),) * 2
    assert rows["hospital-b"].sizes == ((16, 16, 10),) * 2


def test_every_problem_is_found_not_just_the_first(folder: Path) -> None:
    (folder / "north/images/p0.png").write_bytes(b"no picture")
    mask(folder / "north/labels/p1.png", value=7)
    mask(folder / "south/labels/p0.png", size=(12, 11))
    (folder / "south/images/p2.png").write_bytes((folder / "south/images/p2.png").read_bytes()[:60])
    mask(folder / "south/labels/stray.png")
    mask(folder / "south/labels/astray.png")
    report = check_federation(folder)
    assert found(report, "error") == [
        ("north", "north/images/p0.png"),
        ("north", "north/labels/p1.png"),
        ("south", "south/images/p2.png"),
        ("south", "south/labels/astray.png"),
        ("south", "south/labels/p0.png"),
        ("south", "south/labels/stray.png"),
    ]
    sentences = {p.file: p.sentence for p in report.errors}
    assert "cannot be read" in sentences["north/images/p0.png"]
    assert "undeclared label values 7" in sentences["north/labels/p1.png"]
    assert "12x11" in sentences["south/labels/p0.png"]
    assert "without an image" in sentences["south/labels/stray.png"]
    assert str(folder) not in " ".join(sentences.values())


def test_nan_is_an_error_and_leaves_the_statistics_clean(tmp_path: Path) -> None:
    root = tmp_path / "fed"
    write_demo("tumour", root, size=8, cases=2)
    path = root / "hospital-b/images/case-002.nii.gz"
    image = nibabel.load(path)
    values = image.get_fdata(dtype=np.float32)
    values[1, 2, 3, 0] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, image.affine), path)
    report = check_federation(root)
    assert found(report, "error") == [("hospital-b", "hospital-b/images/case-002.nii.gz")]
    assert "NaN" in report.errors[0].sentence
    row = next(row for row in report.rows if row.site == "hospital-b")
    assert row.images == 2
    assert row.mean is not None
    assert np.isfinite(row.mean)


def test_empty_masks_and_constant_images_are_warnings(folder: Path) -> None:
    mask(folder / "north/labels/p2.png", value=0)
    for index in (0, 1):
        Image.fromarray(np.full((12, 10), 9, np.uint8)).save(folder / f"south/images/p{index}.png")
    report = check_federation(folder)
    assert report.errors == ()
    # Two blank images are blank, not duplicates of one another.
    assert found(report, "warning") == [
        ("north", "north/labels/p2.png"), ("south", "south/images/p0.png"), ("south", "south/images/p1.png"),
    ]  # fmt: skip


def manifest(folder: Path, rows: list[str]) -> None:
    (folder / "manifest.csv").write_text("\n".join(["site,image,case,split", *rows]) + "\n")


def test_duplicates_across_splits_are_errors_and_otherwise_warnings(folder: Path) -> None:
    # Not the same bytes: the pixels count.
    Image.open(folder / "north/images/p0.png").save(folder / "south/images/p1.png", compress_level=0)
    assert (folder / "north/images/p0.png").read_bytes() != (folder / "south/images/p1.png").read_bytes()
    report = check_federation(folder)
    assert report.errors == ()
    assert found(report, "warning") == [("south", "south/images/p1.png")]
    assert "north/images/p0.png" in report.warnings[0].sentence

    splits = {"north": ("train", "val", "test"), "south": ("train", "train", "test")}
    manifest(folder, [f"{s},p{i},c{i},{part}" for s, parts in splits.items() for i, part in enumerate(parts)])
    assert check_federation(folder).errors == ()
    splits["south"] = ("train", "test", "val")
    manifest(folder, [f"{s},p{i},c{i},{part}" for s, parts in splits.items() for i, part in enumerate(parts)])
    report = check_federation(folder)
    assert found(report, "error") == [("south", "south/images/p1.png")]
    assert "in train and in test" in report.errors[0].sentence
    recipe = DataSettings.model_validate({"split_from": "recipe"})
    assert check_federation(folder, recipe).errors == ()


def test_a_copy_without_a_split_does_not_hide_the_other_two(folder: Path) -> None:
    for index in (1, 2):
        shutil.copy(folder / "north/images/p0.png", folder / f"south/images/p{index}.png")
    manifest(folder, ["south,p0,a,train", "south,p1,b,train", "south,p2,c,test"])
    report = check_federation(folder)
    assert found(report, "error") == [("south", "south/images/p2.png")]
    assert "south/images/p1.png, in train and in test" in report.errors[0].sentence
    assert found(report, "warning") == [("south", "south/images/p1.png")]


def test_same_numbers_in_another_shape_are_no_duplicate(folder: Path) -> None:
    values = np.asarray(Image.open(folder / "north/images/p0.png"))
    Image.fromarray(values.reshape(10, 12)).save(folder / "north/images/p1.png")
    mask(folder / "north/labels/p1.png", size=(10, 12))
    assert check_federation(folder).problems == ()


def test_cases_that_straddle_splits_and_images_without_split(folder: Path) -> None:
    manifest(folder, ["north,p0,ann,train", "north,p1,ann,test", "north,p2,bob,val", "south,p0,cid,train"])
    report = check_federation(folder)
    assert found(report, "error") == [
        ("north", "manifest.csv"), ("south", "south/images/p1.png"), ("south", "south/images/p2.png"),
    ]  # fmt: skip
    assert "'ann' is in test and in train" in report.errors[0].sentence
    assert report.rows[0].cases == 2
    assert check_federation(folder, DataSettings.model_validate({"split_from": "recipe"})).errors == ()


def test_unlabelled_sites_and_absent_classes_are_warnings(folder: Path) -> None:
    (folder / "federation.toml").write_text('classes = ["background", "organ", "lesion", "stone"]\n')
    mask(folder / "north/labels/p0.png", value=2)
    shutil.copytree(folder / "south/images", folder / "west/images")
    for path in (folder / "west/images").iterdir():
        draw(path, 90 + ord(path.stem[-1]))
    report = check_federation(folder)
    assert report.errors == ()
    texts = [(p.site, p.sentence) for p in report.warnings]
    assert any(site == "west" and "no image has a label" in text for site, text in texts)
    assert any(site == "south" and "holds lesion," in text for site, text in texts)
    assert any(site == "" and "holds stone" in text for site, text in texts)
    assert len(texts) == 3
    assert report.rows[2].labelled == 0


def test_faults_of_the_description_and_the_manifest_do_not_hide_those_of_files(folder: Path) -> None:
    (folder / "federation.toml").write_text('clases = ["background", "organ"]\n')
    manifest(folder, ["north,nobody,ann,train"])
    (folder / "south/labels/p1.png").write_bytes(b"")
    files = {file for _, file in found(check_federation(folder), "error")}
    assert files == {"federation.toml", "manifest.csv", "south/labels/p1.png"}


def test_a_site_without_images_is_an_error_and_the_others_are_checked(folder: Path) -> None:
    (folder / "empty").mkdir()
    mask(folder / "south/labels/p0.png", value=5)
    report = check_federation(folder)
    assert [row.site for row in report.rows] == ["north", "south"]
    assert found(report, "error") == [("empty", "empty"), ("south", "south/labels/p0.png")]


def test_undeclared_classes_are_taken_from_the_labels(folder: Path) -> None:
    (folder / "federation.toml").unlink()
    assert check_federation(folder).problems == ()
    (folder / "north/labels/p0.png").write_bytes(b"broken")
    report = check_federation(folder)
    assert found(report, "error") == [("north", "north/labels/p0.png")]
    assert report.warnings == ()
    assert report.rows[1].classes == ("background", "class 1")


def test_classes_that_nothing_declares_are_those_that_labels_hold(folder: Path) -> None:
    (folder / "federation.toml").unlink()
    (folder / "empty").mkdir()  # the federation does not open, so that nothing is inferred
    mask(folder / "north/labels/p1.png", value=4)
    report = check_federation(folder)
    assert report.errors
    assert report.classes == {0: "background", 1: "class 1", 4: "class 4"}
    assert report.as_dict()["task"]["classes"] == ["background", "class 1", "class 4"]
    for site in ("north", "south"):
        shutil.rmtree(folder / site / "labels")
    assert check_federation(folder).classes == {}
    (folder / "federation.toml").write_text('classes = ["background", "organ", "tumour"]\n')
    assert check_federation(folder).classes == {0: "background", 1: "organ", 2: "tumour"}


def test_progress_counts_every_image(folder: Path) -> None:
    (folder / "north/images/p0.png").write_bytes(b"")
    calls: list[tuple[int, int]] = []
    check_federation(folder, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 6) for done in range(1, 7)]


def test_as_dict_is_json(folder: Path) -> None:
    (folder / "north/images/p0.png").write_bytes(b"")
    plain = json.loads(json.dumps(check_federation(folder).as_dict()))
    assert plain["task"] == {"classes": ["background", "organ"], "channels": 1, "spatial_dims": 2, "regions": {}}
    assert plain["sites"][1]["sizes"] == [[12, 10], [12, 10]]
    assert plain["problems"][0]["severity"] == "error"
    assert plain["problems"][0]["file"] == "north/images/p0.png"


def test_a_typo_in_the_description_does_not_hide_what_the_rest_of_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "fed"
    write_demo("nuclei", folder, cases=1)
    text = (folder / "federation.toml").read_text()
    (folder / "federation.toml").write_text(text + "\nspatial_dimss = 2\n")
    label = next((folder / "hospital-a" / "labels").iterdir())
    Image.fromarray(np.full((64, 64), 7, np.uint8)).save(label)
    report = check_federation(folder, DataSettings())
    assert report.federation.task.classes == ("background", "nucleus")
    sentences = [problem.sentence for problem in report.errors]
    assert any("unknown key 'spatial_dimss'" in sentence for sentence in sentences)
    assert any("7" in problem.sentence and problem.file.endswith(label.name) for problem in report.errors)
