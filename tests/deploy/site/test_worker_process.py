"""The worker as its site sees it: asked again when it ends, killed when it takes too much; small programs play it."""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site import worker_process
from polyclinic.deploy.site.worker_process import StoppedError, WorkerProcess, WorkLimits, resident_bytes

ECHO = """
import sys
from multiprocessing.connection import Connection
from polyclinic.deploy.site.worker_channel import receive, send
connection = Connection(int(sys.argv[1]))
while True:
    blobs, about = receive(connection)
    {then}
    send(connection, blobs, about)
"""

Started = Callable[[str], WorkerProcess]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Start a worker that does something between a request and its answer; it is restarted as a supervisor does."""
    workers: list[WorkerProcess] = []
    done = Event()

    def supervise(worker: WorkerProcess) -> None:
        while not done.wait(0.02):
            worker.restart_if_ended()

    def start(then: str) -> WorkerProcess:
        class Program(WorkerProcess):
            def command_with(self, channel: int) -> list[str]:
                return [sys.executable, "-c", ECHO.replace("{then}", then), str(channel)]

        worker = Program(tmp_path, os.environ, (tmp_path / "worker.log").open("wb"))
        worker.start()
        workers.append(worker)
        thread = Thread(target=supervise, args=(worker,), daemon=True)
        thread.start()
        return worker

    yield start
    done.set()
    for worker in workers:
        worker.stop()
        worker.log.close()


def ask(worker: WorkerProcess, limits: WorkLimits | None = None, stop: Event | None = None) -> Any:
    return worker.ask({"weights": b"x" * 1_000_000}, {"a": 1}, limits or WorkLimits(), stop or Event())


def test_requests_one_after_another(started: Started) -> None:
    worker = started("pass")
    for _ in range(3):
        assert ask(worker) == ({"weights": b"x" * 1_000_000}, {"a": 1})


def test_a_worker_that_ends_at_work_is_asked_again(started: Started, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    then = f"import pathlib; m = pathlib.Path({str(mark)!r}); e = m.exists(); m.touch(); e or sys.exit()"
    assert ask(started(then))[1] == {"a": 1}
    with pytest.raises(PolyclinicError, match="worker ended 4 times while it was at work"):
        ask(started("sys.exit()"))


@pytest.mark.parametrize(
    ("limits", "key"),
    [(WorkLimits(seconds=0.5), "max_seconds_per_round"), (WorkLimits(memory=1.0), "max_memory_gb")],
)
def test_a_worker_over_a_limit_is_killed_and_the_next_one_works(
    limits: WorkLimits, key: str, started: Started, tmp_path: Path
) -> None:
    """Even one that ignores every signal that can be ignored, in a loop that never looks up."""
    if "memory" in key and not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell the memory of a process")
    then = (
        f"import pathlib, signal, time; m = pathlib.Path({str(tmp_path / 'mark')!r}); e = m.exists(); m.touch(); "
        "e or (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(600))"
    )
    worker = started(then)
    with pytest.raises(PolyclinicError, match=f"^refused: .*{key}"):
        ask(worker, limits)
    assert ask(worker)[1] == {"a": 1}


def test_a_site_that_is_stopped_does_not_wait_for_its_worker(started: Started) -> None:
    stop = Event()
    Thread(target=lambda: (time.sleep(0.3), stop.set()), daemon=True).start()
    with pytest.raises(StoppedError):
        ask(started("import time; time.sleep(600)"), stop=stop)


def test_a_worker_that_never_starts_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_START_TIMEOUT", 0.1)
    with (tmp_path / "log").open("wb") as log, pytest.raises(PolyclinicError, match="does not start"):
        ask(WorkerProcess(tmp_path, os.environ, log))


def test_memory_of_a_process_is_without_the_files_that_it_has_mapped(tmp_path: Path) -> None:
    assert resident_bytes(2**22 + 1) == 0
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the memory of a process")
    before, size = resident_bytes(os.getpid()), 3 * 10**7
    assert before > 10**6
    with (tmp_path / "x").open("wb") as file:
        file.truncate(size)  # without bytes of this process, which it might keep
    with (tmp_path / "x").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        assert resident_bytes(os.getpid()) < before + size / 2
    with mmap.mmap(-1, size) as shared:
        shared[:] = bytes(b"x" * size)
        assert resident_bytes(os.getpid()) > before + size / 2
