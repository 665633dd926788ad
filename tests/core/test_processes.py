"""Processes that are started, watched and stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.core.processes import is_alive, start, start_time, stop, stop_all


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must happen."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def test_a_process_that_ended_is_not_the_one_that_was() -> None:
    process = subprocess.Popen(["sleep", "60"])
    began = start_time(process.pid)
    assert began == start_time(process.pid) != ""
    assert is_alive(process.pid, began)
    assert not is_alive(process.pid, "another")
    process.kill()
    until(lambda: start_time(process.pid) != began)
    assert not is_alive(process.pid, start_time(process.pid)), "it ended, though nobody has asked how"
    process.wait()
    assert start_time(process.pid) == ""
    assert not is_alive(process.pid, "")


@pytest.mark.parametrize("script", ["sleep 60 & wait", "trap '' TERM; sleep 60; true"])
def test_stopping_ends_a_program_and_what_it_started(script: str, tmp_path: Path) -> None:
    """The second script ignores SIGTERM; what it started is killed with it."""
    process = start(["sh", "-c", f"{script} "], os.environ, None)
    until(lambda: len(children(process.pid)) == 1)
    (child,) = children(process.pid)
    started = start_time(child)
    stop(process, grace=0.3)
    assert process.poll() is not None
    until(lambda: not is_alive(child, started))
    stop(process, grace=0.3)
    stop(None)


def test_a_started_program_has_its_own_session(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the session of the user's command; the supervisor decides about the rest."""
    process = start(["sleep", "60"], os.environ, None)
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        stop(process)


def test_a_process_ends_with_its_owner_however_that_ends() -> None:
    """A server's own process once went on for minutes after its supervisor had been killed."""
    owner = subprocess.Popen(["sleep", "60"])
    program = f"from polyclinic.core.processes import end_with; end_with({owner.pid}); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program])
    time.sleep(1)
    assert process.poll() is None
    owner.kill()
    assert process.wait(50) == 0
    owner.wait()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_several_programs_share_the_time_that_one_has_to_end() -> None:
    """One ends when it is asked to, two do not."""
    processes = [
        start(["sh", "-c", f"{first}sleep 60; true"], os.environ, None) for first in ("", *2 * ["trap '' TERM; "])
    ]
    for process in processes:
        until(lambda pid=process.pid: len(children(pid)) == 1)  # type: ignore[misc]
    stop_all(processes, grace=0.3)
    assert [process.poll() for process in processes] == [-15, -9, -9]


def test_a_piped_program_answers_and_its_errors_go_to_the_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = start(["sh", "-c", "read word; echo got $word; echo trouble >&2"], os.environ, log, piped=True)
    answer, _ = process.communicate(b"this\n", timeout=60)
    assert answer == b"got this\n"
    assert (tmp_path / "log").read_bytes() == b"trouble\n"
