"""A process that carries out runs: what is asked of it, what it answers, and how it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from grid_support import about, grid_run, stand_in  # noqa: F401 (a fixture)
from polyclinic.core.processes import is_alive, start_time
from polyclinic.runs.grid_process import Answer, RunProcess, stop_processes

WITH = {"OMP_NUM_THREADS": "1"}


@pytest.mark.usefixtures("stand_in")
def test_one_process_does_one_run_after_another(tmp_path: Path) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    first, second, bad = grid_run(tmp_path), grid_run(tmp_path, "fedbn"), grid_run(tmp_path, "refuses")
    process = RunProcess(first, WITH, answers)
    for run in (second, bad, None):
        answer = answers.get(timeout=60)
        problem = None if run else "images: no such folder; give another."
        assert (answer.process, answer.problem, answer.reusable) == (process, problem, True)
        if run is not None:
            process.carry_out(run)
    assert [about(run)["runs"] for run in (first, second, bad)] == [1, 2, 3]
    assert len({about(run)["pid"] for run in (first, second, bad)}) == 1
    assert 'federation = "demo:nuclei"' in about(second)["recipe"]
    assert second.log.read_text() == "some progress\nthe last words\n"
    stop_processes([process])
    assert process.process.poll() is not None


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("dies", "its process was ended by SIGKILL, as the system does when memory runs out (the last words)"),
        ("leaves", "its process ended with code 3 (the last words)"),
    ],
)
def test_a_process_that_ends_says_how_with_the_last_words_of_its_log(tmp_path: Path, method: str, words: str) -> None:
    answers: SimpleQueue[Answer] = SimpleQueue()
    process = RunProcess(grid_run(tmp_path, method), WITH, answers)
    answer = answers.get(timeout=60)
    assert (answer.problem, answer.reusable) == (words, False)
    process.carry_out(grid_run(tmp_path))  # too late, and no error
    stop_processes([process])


def test_a_program_that_does_not_start_leaves_its_reason_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyclinic.runs.grid_process.PROGRAM", ("-c", "raise SystemExit('no torch here')"))
    answers: SimpleQueue[Answer] = SimpleQueue()
    run = grid_run(tmp_path)
    process = RunProcess(run, WITH, answers)
    assert answers.get(timeout=60).problem == "its process ended with code 1 (no torch here)"
    assert run.log.read_text() == "no torch here\n"
    stop_processes([process])


PARENT = """
import sys, time
from pathlib import Path
from queue import SimpleQueue
import polyclinic.runs.grid_process as grid_process
from grid_support import grid_run
grid_process.PROGRAM = (sys.argv[1],)
process = grid_process.RunProcess(grid_run(Path(sys.argv[2]), "lasts"), {"OMP_NUM_THREADS": "1"}, SimpleQueue())
print(process.process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_a_killed_parent(stand_in: Path, tmp_path: Path) -> None:  # noqa: F811
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(stand_in), str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    started = start_time(child)
    assert is_alive(child, started)
    parent.kill()
    parent.communicate()
    ends = time.monotonic() + 60
    while is_alive(child, started):
        assert time.monotonic() < ends
        time.sleep(0.02)
