"""Work that falls into many jobs, done by forked processes: nothing is sent but the numbers of jobs and plain answers.

What a job makes, it writes to where this process can see it, such as a file or shared memory.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from polyclinic.core.child_processes import die_with_parent
from polyclinic.core.errors import PolyclinicError

Job = Callable[[int], Any]
"""Does the job of a number; the answer is plain data."""
Progress = Callable[[int, int], None]
"""Is told how many of how many are done."""
_AHEAD = 2  # jobs that a process has, so that it never waits for the next one


class WorkerEndedError(PolyclinicError):
    """A process ended by itself; ``how`` says by which signal or with which code."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(
            f"a process that prepares data ended {how}, as it does where memory runs out; free some memory, or use "
            "fewer cores (taskset)."
        )


@dataclass
class _Worker:
    pid: int
    jobs: int
    answers: int
    begun: list[int] = field(default_factory=list)
    unread: bytes = b""

    def give(self, number: int) -> None:
        self.begun.append(number)
        with suppress(BrokenPipeError):  # it has ended, and reading from it tells how
            os.write(self.jobs, b"%d\n" % number)

    def read(self) -> Iterator[tuple[int, bool, Any]]:
        """Number, success and answer of the jobs that have ended; raises ``EOFError`` if the process has."""
        try:
            data = os.read(self.answers, 2**16)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            number, done, answer = json.loads(line)
            self.begun.remove(number)
            yield number, done, answer


def run_jobs(job: Job, count: int, processes: int = 1, progress: Progress = lambda *_: None) -> list[Any]:
    """Do the jobs 0 to ``count`` - 1 and give their answers in this order.

    A job that fails raises its own error here, that of the first one if several do, as one after another would have.
    Without ``fork`` and with one process they are done here.
    """
    processes = min(processes, count) if sys.platform.startswith("linux") else 1
    if processes > 1:
        return _in_processes(job, count, processes, progress)
    answers = []
    for number in range(count):
        answers.append(job(number))
        progress(number + 1, count)
    return answers


def _in_processes(job: Job, count: int, processes: int, progress: Progress) -> list[Any]:
    workers: list[_Worker] = []
    answers: dict[int, Any] = {}
    failed: set[int] = set()
    waiting = iter(range(count))
    try:
        for _ in range(processes):
            workers.append(_start(job, workers))
        with selectors.DefaultSelector() as ready:
            for worker in workers:
                ready.register(worker.answers, selectors.EVENT_READ, worker)
                _give(worker, waiting)
            while any(worker.begun for worker in workers):
                for key, _ in ready.select():
                    for number, done, answer in _read(key.data):
                        if done:
                            answers[number] = answer
                            progress(len(answers), count)
                        else:
                            failed.add(number)
                    _give(key.data, iter(()) if failed else waiting)
    finally:
        _end(workers)
    for number in sorted(failed):  # in this process the error is itself, and nothing has to carry it over
        answers[number] = job(number)
    for number in waiting:  # what had failed went well the second time
        answers[number] = job(number)
    return [answers[number] for number in range(count)]


def _give(worker: _Worker, waiting: Iterator[int]) -> None:
    while len(worker.begun) < _AHEAD and (number := next(waiting, None)) is not None:
        worker.give(number)


def _read(worker: _Worker) -> list[tuple[int, bool, Any]]:
    try:
        return list(worker.read())
    except EOFError:
        _, status = os.waitpid(worker.pid, 0)
        worker.pid = 0
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        raise WorkerEndedError(how) from None


def _start(job: Job, others: list[_Worker]) -> _Worker:
    jobs_out, jobs_in = os.pipe()
    answers_out, answers_in = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for descriptor in (jobs_in, answers_out, *(fd for worker in others for fd in (worker.jobs, worker.answers))):
            os.close(descriptor)
        _serve(job, parent, jobs_out, answers_in)
    os.close(jobs_out)
    os.close(answers_in)
    return _Worker(pid, jobs_in, answers_out)


def _serve(job: Job, parent: int, jobs: int, answers: int) -> NoReturn:
    """The life of a process: never returns, so that nothing of the parent is cleaned up twice."""
    code = 1
    try:
        die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getppid() == parent:
            with os.fdopen(jobs, "rb") as numbers:
                for line in numbers:
                    _answer(job, int(line), answers)
        code = 0
    finally:
        os._exit(code)


def _answer(job: Job, number: int, answers: int) -> None:
    try:
        done, answer = True, job(number)
    except Exception:  # not lost: the parent does the job again itself, and raises what comes of it
        done, answer = False, None
    data = json.dumps([number, done, answer]).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def _end(workers: list[_Worker]) -> None:
    """End all processes, whatever they do: what they have written counts only when all is done."""
    for worker in workers:
        os.close(worker.jobs)
        os.close(worker.answers)
        if worker.pid:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
