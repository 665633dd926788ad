"""What is said when runs have failed."""

from __future__ import annotations

from pathlib import Path

from grid_support import grid_run
from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.grid_failure import GridFailedError, failure_of
from polyclinic.runs.grid_progress import RunProgress
from polyclinic.runs.grid_view import RunView


def failed(out: Path, count: int) -> list[RunProgress]:
    return [RunProgress(grid_run(out, "fedbn", seed), RunView(1, 0), problem="no room.") for seed in range(count)]


def test_each_failed_run_is_named_with_its_log(tmp_path: Path) -> None:
    text = str(GridFailedError(failed(tmp_path, 2), 6))
    assert text.splitlines() == [
        "2 of 6 runs failed; all others are done and in the tables; mend that and start the same command again:",
        f"  fedbn seed 0: no room; see {tmp_path}/fedbn-seed0/output.log.",
        f"  fedbn seed 1: no room; see {tmp_path}/fedbn-seed1/output.log.",
    ]


def test_many_are_counted(tmp_path: Path) -> None:
    lines = str(GridFailedError(failed(tmp_path, 30), 30)).splitlines()
    assert lines[0] == "30 of 30 runs failed; mend that and start the same command again:"
    assert (len(lines), lines[-1]) == (22, "  and 10 more")


def test_errors_in_one_sentence() -> None:
    assert failure_of(PolyclinicError("a sentence.\nmore")) == "a sentence."
    assert failure_of(ValueError("a\nb")) == "ValueError: a"
    assert failure_of(KeyError()) == "KeyError: "
