"""What a prediction writes, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.prediction_plan import (
    RECORD,
    Outcome,
    Wanted,
    image_item,
    plan_files,
    record_model,
    remove_parts,
    require_same_model,
)


def items(*names: str) -> list:
    return [image_item(Path(name).stem, (Path("images") / name,), ()) for name in names]


def test_files_have_the_names_of_their_images(tmp_path: Path) -> None:
    listed = [*items("a.jpg", "b.mhd"), image_item("1.2.3", (Path("x/1.2.3.dicom.json"),), ())]
    wanted, skipped = plan_files(listed, tmp_path, probabilities=True, overwrite=False, skip_existing=False)
    assert [[path.name for path in one.files] for one in wanted] == [
        ["a.png", "a.probabilities.tif"],
        ["b.mha", "b.probabilities.nii.gz"],
        ["1.2.3.nii.gz", "1.2.3.probabilities.nii.gz"],
    ]
    assert skipped == []


def test_only_what_is_missing_is_wanted_after_an_interruption(tmp_path: Path) -> None:
    for name in ("a.png", "a.probabilities.tif", "b.png"):
        (tmp_path / name).touch()
    listed = items("a.png", "b.png", "c.png")
    wanted, skipped = plan_files(listed, tmp_path, probabilities=True, overwrite=False, skip_existing=True)
    assert [[path.name for path in one.files] for one in wanted] == [
        ["b.probabilities.tif"],
        ["c.png", "c.probabilities.tif"],
    ]
    assert skipped == ["a"]
    again = [Wanted.from_plain(json.loads(json.dumps(one.as_plain()))) for one in wanted]
    assert [one.files for one in again] == [one.files for one in wanted]
    assert [one.item.images for one in again] == [(Path("images/b.png").resolve(),), (Path("images/c.png").resolve(),)]


def test_wrong_wishes_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="--overwrite and --skip-existing: exclude each other"):
        plan_files(items("a.png"), tmp_path, probabilities=False, overwrite=True, skip_existing=True)
    with pytest.raises(PolyclinicError, match="holds the images, which masks would overwrite"):
        plan_files(items("a.png"), Path("images"), probabilities=False, overwrite=True, skip_existing=False)
    twice = items("a.png", "a.probabilities.tif")
    with pytest.raises(PolyclinicError, match=r"a\.probabilities\.tif: would be written for two images"):
        plan_files(twice, tmp_path, probabilities=True, overwrite=True, skip_existing=False)


def test_a_folder_goes_on_with_the_weights_that_it_has(tmp_path: Path) -> None:
    require_same_model(tmp_path, {"weights": "a"})
    record_model(tmp_path, {"weights": "a", "run": "runs/one"})
    require_same_model(tmp_path, {"weights": "a", "run": "runs/copy"})
    with pytest.raises(PolyclinicError, match=r"made with another model \(runs/one\)"):
        require_same_model(tmp_path, {"weights": "b", "run": "runs/one"})
    (tmp_path / RECORD).write_text("[]")
    with pytest.raises(PolyclinicError, match="made with another model"):
        require_same_model(tmp_path, {"weights": "a"})


def test_halves_of_wanted_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    remove_parts(tmp_path / "none", [])
    for name in (".a.png.123.part", ".b.png.123.part", ".a.png.part", "a.png"):
        (tmp_path / name).touch()
    remove_parts(tmp_path, [Wanted(items("a.png")[0], tmp_path / "a.png", None)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.png.part", ".b.png.123.part", "a.png"]


def test_an_outcome_knows_what_was_written_and_what_was_not(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, ("background", "x"))
    outcome.add(Wanted(items("a.png")[0], tmp_path / "a.png", None), None)
    outcome.add(Wanted(items("b.png")[0], None, tmp_path / "b.tif"), None)
    outcome.add(Wanted(items("c.png")[0], tmp_path / "c.png", None), "damaged")
    assert outcome.masks == {"a": tmp_path / "a.png"}
    assert outcome.probabilities == {"b": tmp_path / "b.tif"}
    assert outcome.failed == {"c": "damaged"}
