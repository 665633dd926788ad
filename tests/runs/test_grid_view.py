"""Where a run of a grid stands, from its files."""

from __future__ import annotations

import os
from pathlib import Path

from grid_support import grid_run, recipe_with, write_live
from polyclinic.runs.grid_view import RunView, read_view, recorded_seconds

ROUNDS = {"training": {"rounds": 10}}


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=recipe_with(**ROUNDS))
    assert read_view(run) == RunView(10, 0)
    assert recorded_seconds(run) is None


def test_a_run_in_the_middle(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=recipe_with(**ROUNDS))
    write_live(run, round=3, rounds=10, dice=0.5, sites={"north": {}, "south": {}})
    (run.folder / "events.jsonl").write_text("{}\n")
    os.utime(run.folder / "events.jsonl", (7, 1234))
    view = read_view(run)
    assert view == RunView(10, 3, 1, 0.5, 2, 1234.0)
    assert view.finished().done == 10
    write_live(run, round=3, rounds=10, dice=0.0, stuck=5)
    assert read_view(run).stuck == "stuck at background"
    write_live(run, round=3, rounds=10, dice=0.2, stuck=0, sites={"north": {"stuck": 5}, "south": {}, "west": 3})
    assert read_view(run).stuck == "stuck at background at north"


def test_parts_that_are_tested_count_whole_and_once(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=recipe_with(**ROUNDS, protocol={"kind": "k-fold", "folds": 4}))
    assert read_view(run).rounds == 40
    for fold in ("fold-1", "fold-2"):
        (run.folder / "checkpoints" / fold).mkdir(parents=True)
        (run.folder / "checkpoints" / fold / "tested.json").write_text("{}")
    write_live(run, part="fold-2", round=10)
    assert read_view(run).done == 20
    write_live(run, part="fold-3", round=4)
    assert read_view(run).done == 24


def test_sites_to_leave_out_are_counted_when_the_run_has_written_its_splits(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=recipe_with(**ROUNDS, protocol={"kind": "leave-one-site-out"}))
    assert read_view(run).rounds == 10
    run.folder.mkdir(parents=True)
    for site in "abc":
        (run.folder / f"split-without-{site}.csv").touch()
    assert (read_view(run).rounds, read_view(run).parts) == (30, 3)


def test_files_that_are_half_there_are_no_progress(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=recipe_with(**ROUNDS))
    write_live(run)
    for text in ("", '{"round": 3', "[]", '{"round": "three", "dice": "good", "sites": 4}', "\0"):
        (run.folder / "live.json").write_text(text)
        assert read_view(run) == RunView(10, 0)
    write_live(run, round=99)
    assert read_view(run).done == 10
    (run.folder / "summary.json").write_text('{"seconds": 12.5}')
    assert recorded_seconds(run) == 12.5
