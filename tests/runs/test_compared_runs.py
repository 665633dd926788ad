"""Which runs of a folder are shown: of grids and studies that are whole, in part done, and tampered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.compared_runs import compared_runs


def write_grid(folder: Path, runs: Sequence[tuple[str, int]], finished: Sequence[tuple[str, int]]) -> Path:
    for method, seed in runs:
        (folder / f"{method}-{seed}").mkdir(parents=True)
        if (method, seed) in finished:
            (folder / f"{method}-{seed}" / "summary.json").write_text("{}")
    entries = [{"method": method, "seed": seed, "folder": f"{method}-{seed}"} for method, seed in runs]
    (folder / "grid.json").write_text(json.dumps({"runs": entries}))
    return folder


GRID = [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1)]


def test_the_first_seed_of_the_first_method(tmp_path: Path) -> None:
    runs = compared_runs(write_grid(tmp_path, GRID, GRID))
    assert (runs.reference, runs.seed, runs.unfinished) == ("a", 0, ())
    assert runs.folders == {name: tmp_path / f"{name}-0" for name in "abc"}


def test_the_first_seed_that_the_reference_has_finished(tmp_path: Path) -> None:
    write_grid(tmp_path, GRID, [("a", 0), ("b", 1), ("c", 1), ("c", 0)])
    runs = compared_runs(tmp_path, "b")
    assert (runs.reference, runs.seed, list(runs.folders), runs.unfinished) == ("b", 1, ["b", "c"], ("a",))
    assert compared_runs(tmp_path).seed == 0


def test_without_a_reference_it_is_the_first_method_with_a_result(tmp_path: Path) -> None:
    runs = compared_runs(write_grid(tmp_path, GRID, [("c", 0), ("b", 1)]))
    assert (runs.reference, runs.seed, runs.unfinished) == ("b", 1, ("a", "c"))


def test_what_cannot_be_found_gets_a_sentence(tmp_path: Path) -> None:
    write_grid(tmp_path / "grid", GRID, [("a", 0)])
    with pytest.raises(PolyclinicError, match=r"has no method 'd'.* It holds: a, b, c"):
        compared_runs(tmp_path / "grid", "d")
    with pytest.raises(PolyclinicError, match="no finished run of b yet"):
        compared_runs(tmp_path / "grid", "b")
    with pytest.raises(PolyclinicError, match="is no run, comparison or study"):
        compared_runs(tmp_path)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "..", "", "a/b"])
def test_a_folder_outside_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "grid.json").write_text(json.dumps({"runs": [{"method": "a", "seed": 0, "folder": name}]}))
    with pytest.raises(PolyclinicError, match="does not lie in it"):
        compared_runs(tmp_path)


def test_a_study_is_its_first_value_with_what_serves_all_values(tmp_path: Path) -> None:
    for name, runs in {"five": [("a", 0), ("b", 0)], "ten": [("a", 0)], "all": [("bound", 0)]}.items():
        write_grid(tmp_path / name, runs, runs)
    study = {"key": "data.labelled", "methods": ["bound", "a", "b"], "values": ["5", "10"]}
    study |= {"grids": {"5": "five", "10": "ten"}, "fixed": "all"}
    (tmp_path / "study.json").write_text(json.dumps(study))
    runs = compared_runs(tmp_path, "a")
    assert list(runs.folders) == ["bound", "a", "b"]
    assert runs.about == {"key": "data.labelled", "value": "5"}
    assert runs.folders["a"] == tmp_path / "five" / "a-0"


def test_a_study_of_two_keys_has_what_serves_the_first_pair(tmp_path: Path) -> None:
    for name in ("first", "second", "all-first", "all-second"):
        write_grid(tmp_path / name, [("bound" if "all" in name else "a", 0)], [("bound", 0), ("a", 0)])
    study: dict[str, Any] = {
        "key": "training.lr, data.labelled",
        "methods": ["a", "bound"],
        "values": ["0.1, 5", "0.2, 5"],
    }
    study |= {
        "grids": {"0.1, 5": "first", "0.2, 5": "second"},
        "fixed": {"0.1, 5": "all-first", "0.2, 5": "all-second"},
    }
    (tmp_path / "study.json").write_text(json.dumps(study))
    assert compared_runs(tmp_path).folders == {
        "a": tmp_path / "first" / "a-0", "bound": tmp_path / "all-first" / "bound-0"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["grid.json", "study.json"])
@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"runs": [{}], "values": []}', '{"runs": 3, "values": ["5"], "grids": []}', "{"]
)
def test_damaged_files_get_a_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PolyclinicError, match=name):
        compared_runs(tmp_path)


def test_inputs_change_with_models_and_values_and_nothing_else(finished: Callable[..., Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished("fedbn"), tmp_path / "run"))
    before = compared_runs(run).inputs()
    assert list(before["runs"]) == ["fedbn"]
    (run / "live.json").write_text("{}")
    (run / "gallery").mkdir()
    assert compared_runs(run).inputs() == before
    for path in (run / "checkpoints/all/best.safetensors", *run.glob("sites/north/all/round-*"), run / "task.json"):
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert compared_runs(run).inputs() != before
        path.write_bytes(content)
    assert compared_runs(run).inputs() == before
