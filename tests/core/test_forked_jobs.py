"""Jobs in forked processes: the same answers and errors as one after another, and nothing left running."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.forked_jobs import run_jobs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only")


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_answers_come_in_order_whatever_the_number_of_processes(processes: int) -> None:
    with mmap.mmap(-1, 20) as memory:

        def job(number: int) -> dict[str, Any]:
            memory[number] = number + 1
            time.sleep(0.01 * (number % 3))
            return {"square": number**2, "text": "x" * number * 5000}

        told: list[tuple[int, int]] = []
        before = children()
        answers = run_jobs(job, 7, processes, lambda *numbers: told.append(numbers))
        assert [answer["square"] for answer in answers] == [0, 1, 4, 9, 16, 25, 36]
        assert len(answers[6]["text"]) == 30000
        assert bytes(memory[:8]) == bytes([1, 2, 3, 4, 5, 6, 7, 0])
        assert told == [(done, 7) for done in range(1, 8)]
        assert children() == before


def test_nothing_to_do_is_nothing() -> None:
    assert run_jobs(lambda number: number, 0, 4) == []


@pytest.mark.parametrize("processes", [1, 3])
def test_the_first_of_several_errors_is_raised_as_it_was(processes: int) -> None:
    def job(number: int) -> int:
        time.sleep(0.05 if number == 2 else 0)  # a later job fails sooner
        if number in (2, 3, 5):
            raise KeyError(f"job {number}")
        return number

    before = children()
    with pytest.raises(KeyError, match="job 2"):
        run_jobs(job, 9, processes)
    assert children() == before


def test_what_failed_in_a_process_and_not_here_goes_on(tmp_path: Path) -> None:
    here = os.getpid()

    def job(number: int) -> int:
        if number == 1 and os.getpid() != here:
            raise OSError("for a moment")
        return number

    assert run_jobs(job, 30, 2) == list(range(30))


@pytest.mark.parametrize(
    ("end", "how"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "by signal 9"), (lambda: os._exit(3), "with code 3")],
)
def test_a_process_that_ends_gets_a_sentence(end: Callable[[], None], how: str) -> None:
    here = os.getpid()

    def job(number: int) -> int:
        if number == 3 and os.getpid() != here:
            end()
        return number

    before = children()
    with pytest.raises(PolyclinicError, match=f"ended {how}, as it does where memory runs out; free some memory"):
        run_jobs(job, 8, 2)
    assert children() == before


def test_an_interrupt_leaves_no_process() -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(lambda number: time.sleep(0 if number == 0 else 600), 9, 2, stop)
    assert children() == before


KILLED = """
import os, sys, time
from polyclinic.core.forked_jobs import run_jobs
def job(number):
    os.write(1, f"{os.getpid()}\\n".encode())  # at once, so that two processes do not write into one line
    time.sleep(600)
run_jobs(job, 4, 2)
"""


def test_processes_end_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = {int(parent.stdout.readline()) for _ in range(2)}
    parent.kill()
    parent.stdout.read()  # ends when the last process that could write is gone
    parent.wait()
    assert len(pids - {parent.pid}) == 2
