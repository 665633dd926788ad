from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.report.stuck_runs import run_summaries, stuck_line, stuck_status, stuck_words


def write_grid(folder: Path, summaries: dict[str, dict[str, Any] | None]) -> Path:
    """A grid of one seed a method; a run without a summary is not finished."""
    runs = [{"method": method, "seed": 0, "folder": f"{method}-seed0"} for method in summaries]
    folder.mkdir(exist_ok=True)
    (folder / "grid.json").write_text(json.dumps({"methods": list(summaries), "runs": runs}))
    for entry in runs:
        (folder / str(entry["folder"])).mkdir()
        if (summary := summaries[str(entry["method"])]) is not None:
            (folder / str(entry["folder"]) / "summary.json").write_text(json.dumps(summary))
    return folder


def stuck_runs_line(grid: Path) -> str:
    return stuck_words(run_summaries(grid))


def test_a_run_says_how_long_it_was_stuck() -> None:
    assert stuck_line({}) == ""
    whole = {"stuck": {"all": {"longest": 12, "at_end": 12}}}
    assert stuck_line(whole) == (
        "Stuck at background: 12 validated rounds, to the end; see docs/explanation/training.md."
    )
    folds = {"stuck": {"fold-1": {"longest": 5, "at_end": 0}, "fold-2": {"longest": 6, "at_end": 0}}}
    assert "6 validated rounds in part fold-2;" in stuck_line(folds)


@pytest.mark.parametrize(
    "damaged",
    [
        3,
        [],
        {"all": 7},
        {"all": {"longest": "many", "at_end": 1}},
        {"all": {}},
        {"all": {"sites": 4}},
        {"all": {"sites": {"a": 3, "b": {"longest": 0, "at_end": 0}, "c": {"longest": "x"}}}},
    ],
)
def test_a_record_that_is_none_is_passed_over(damaged: Any) -> None:
    assert stuck_line({"stuck": damaged}) == ""


def test_a_grid_names_the_runs_that_were_stuck(tmp_path: Path) -> None:
    stuck = {"stuck": {"all": {"longest": 7, "at_end": 0}}}
    grid = write_grid(tmp_path / "grid", {"fedavg": stuck, "fedbn": {}, "fedprox": None})
    assert stuck_runs_line(grid) == (
        "Stuck at background: fedavg seed 0 (7 validated rounds); see docs/explanation/training.md."
    )
    assert stuck_runs_line(write_grid(tmp_path / "sound", {"fedavg": {}})) == ""


def at_sites(*sites: str, part: str = "all", longest: int = 5, at_end: int = 0) -> dict[str, Any]:
    """A part in which these sites found nothing, and others found something."""
    counts = {"longest": longest, "at_end": at_end}
    return {part: {"longest": 0, "at_end": 0, "sites": dict.fromkeys(sites, counts)}}


def test_sites_that_found_nothing_are_named_with_the_run(tmp_path: Path) -> None:
    one = {"stuck": at_sites("south", longest=12, at_end=12)}
    words = "Stuck at background at single sites: south (12 validated rounds, to the end); see docs/explanation/"
    assert stuck_line(one) == f"{words}training.md."
    assert stuck_status(one) == "stuck at background at south (12 validated rounds, to the end)"
    folds = {"stuck": at_sites("south", part="fold-1") | at_sites("south", "west", part="fold-2", longest=7)}
    assert "sites: south (7 validated rounds in part fold-2), west (7 validated rounds in part" in stuck_line(folds)
    grid = write_grid(tmp_path / "grid", {"fedavg": {}, "fedbn": one, "local": {"stuck": at_sites("a", "b")}})
    assert stuck_runs_line(grid).startswith(
        "Stuck at background at single sites: south of fedbn seed 0 (12 validated rounds, to the end), "
        "a of local seed 0 (5 validated rounds), b of local seed 0 (5 validated rounds);"
    )


def test_a_run_that_was_stuck_everywhere_and_at_a_site_says_both() -> None:
    parts = at_sites("south") | {"fold-2": {"longest": 6, "at_end": 6}}
    assert stuck_status({"stuck": parts}) == (
        "stuck at background for 6 validated rounds in part fold-2, to the end; "
        "stuck at background at south (5 validated rounds)"
    )
    assert stuck_line({"stuck": parts}).count("see docs/explanation/training.md") == 2
    assert stuck_status({}) == ""


def test_many_sites_and_runs_are_counted() -> None:
    many = {"stuck": at_sites(*"abcdefg")}
    assert stuck_line(many).startswith("Stuck at background at single sites: 7 sites;")
    runs = [(f"local seed {seed}", {"stuck": {"all": {"longest": 5, "at_end": 5}}}) for seed in range(9)]
    assert "local seed 5 (5 validated rounds, to the end), and 3 more; see" in stuck_words(runs)


def test_a_class_that_was_lost_in_training_is_named(tmp_path: Path) -> None:
    lost = {"average": {"dice": 0.41, "dice/anterior": 0.0, "dice/posterior": 0.82}}
    sound = {"average": {"dice": 0.83, "dice/anterior": 0.84, "dice/posterior": 0.82, "hd95/anterior": 0.0}}
    assert stuck_line(lost) == "Found at no site: anterior; see docs/explanation/training.md."
    assert stuck_line(sound) == ""
    grid = write_grid(tmp_path / "grid", {"fedavg": lost, "fedbn": sound, "local": lost})
    assert stuck_runs_line(grid) == (
        "Found at no site: anterior (fedavg seed 0, local seed 0); see docs/explanation/training.md."
    )


@pytest.mark.parametrize(
    "average",
    [
        {"dice": 0.0, "dice/anterior": 0.0, "dice/posterior": 0.0},  # nothing at all: that is stuck
        {"dice": 0.5, "dice/anterior": None, "dice/posterior": 0.5},  # in no test image
        {"dice/anterior": "none", "dice/posterior": 0.5},
        [],
    ],
)
def test_what_is_no_lost_class(average: Any) -> None:
    assert stuck_line({"average": average}) == ""


def test_a_stuck_run_and_a_lost_class_have_a_sentence_each(tmp_path: Path) -> None:
    both = {"stuck": {"all": {"longest": 5, "at_end": 0}}, "average": {"dice/a": 0.001, "dice/b": 0.5}}
    assert stuck_line(both).count("see docs/explanation/training.md") == 2
    assert stuck_runs_line(write_grid(tmp_path / "grid", {"fedavg": both})).count(".md.") == 2
