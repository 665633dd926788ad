"""Images for the check: the run's test images where they are, else synthetic files of the task's shape."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyclinic.data.federation import Federation, Task
from polyclinic.data.preprocessing import prepare
from polyclinic.export.check_images import find_check_images, synthetic_items
from polyclinic.federation.workspace import build_workspace
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.predict import load_model
from support import tiny_recipe

Finished = Callable[..., Path]


def in_test(run: Path) -> set[tuple[str, str]]:
    with (run / "split.csv").open(newline="") as file:
        return {(row["site"], row["image"]) for row in csv.DictReader(file) if row["split"] == "test"}


def test_test_images_come_from_all_sites_in_turns(finished: Finished, tmp_path: Path) -> None:
    run = finished()
    workspace, federation = load_model(run, site=None, part=None, model=None)
    found = find_check_images(workspace, federation, RunFolder(run), "all", None, tmp_path)
    assert (found.kind, found.why) == ("test", "")
    chosen = [(item.site, item.name) for item in found.items]
    assert set(chosen) <= in_test(run)
    assert [site for site, _ in chosen[:2]] == ["north", "south"]
    alone = find_check_images(workspace, federation, RunFolder(run), "all", "south", tmp_path)
    assert {item.site for item in alone.items} == {"south"}


def test_without_the_federation_images_are_synthetic_and_the_reason_is_told(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished(), tmp_path / "run")
    text = (run / "recipe.toml").read_text()
    first = next(line for line in text.splitlines() if line.startswith("federation"))
    (run / "recipe.toml").write_text(text.replace(first, 'federation = "/gone"'))
    workspace, federation = load_model(run, site=None, part=None, model=None)
    found = find_check_images(workspace, federation, RunFolder(run), "all", None, tmp_path / "images")
    assert found.kind == "synthetic"
    assert "/gone" in found.why
    assert [path.parent for item in found.items for path in item.images] == [tmp_path / "images"] * 2


def test_formats_that_exported_programs_do_not_read_are_not_checked_on(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, federation = load_model(finished(), site=None, part=None, model=None)
    monkeypatch.setattr("polyclinic.export.check_images.suffix_of", lambda path: "")
    found = find_check_images(workspace, federation, RunFolder(finished()), "all", None, tmp_path)
    assert found.kind == "synthetic"
    assert "has a format that exported programs do not read" in found.why


@pytest.mark.parametrize(("task", "data", "sliced"), [
    (Task(("b", "a"), 1, 2), {"size": (16, 12)}, False),
    (Task(("b", "a"), 3, 2), {"size": (16, 12), "intensity": "full-range"}, False),
    (Task(("b", "a"), 4, 2), {"size": "auto"}, False),
    (Task(("b", "a"), 2, 3), {"patch": (8, 8, 16), "spacing": (1.0, 2.0, 3.0)}, False),
    (Task(("b", "a"), 3, 2, "", 1), {"size": (8, 8), "slice_axis": 1}, True),
])  # fmt: skip
def test_synthetic_images_fit_any_task(task: Task, data: dict[str, Any], sliced: bool, tmp_path: Path) -> None:
    workspace = build_workspace(tiny_recipe(data=data), task)
    federation = Federation("f", task, {}, Path(), sliced)
    first, second = synthetic_items(workspace, federation, tmp_path)
    prepared = prepare(first, federation, workspace.recipe.data)
    assert prepared[0].image.shape[0] == task.channels
    assert len(prepared) == (5 if sliced else 1)
    assert first.images[0].read_bytes() != second.images[0].read_bytes()
    again = synthetic_items(workspace, federation, tmp_path / "again")[0]
    assert (prepare(again, federation, workspace.recipe.data)[0].image == prepared[0].image).all()
