"""The worker processes of an engine: hands out tasks, takes answers in order, and replaces a worker that dies."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.timing import recording
from polyclinic.engines.workers.process import WorkerProcess
from polyclinic.engines.workers.schedule import Expected, next_site, window_size
from polyclinic.engines.workers.shared_block import SharedBlock
from polyclinic.exchange.messages import Message, from_tensors

StartWorker = Callable[[Sequence[WorkerProcess]], WorkerProcess]
"""Starts a worker beside those that there are."""
_WAITING_ANSWERS = 2**27  # bytes of shared memory for answers that the server has not taken yet
_ATTEMPTS = 3  # workers that may end at one site before the run does


@dataclass(frozen=True)
class Job:
    """What all sites of one call are asked for; ``broadcast`` is the number of the block with the message to them."""

    work: str
    broadcast: int
    expected: Expected
    split: str = ""
    detailed: bool = False


@dataclass(frozen=True)
class Task:
    """One site's share of a job; its answer comes in the block number ``answer``."""

    site: str
    position: int
    answer: int


class WorkerPool:
    """A number of workers, started at the first task."""

    def __init__(self, count: int, start: StartWorker, message_bytes: int, say: Callable[[str], None]) -> None:
        self.count, self._start, self._message_bytes, self._say = count, start, message_bytes, say
        self.workers: list[WorkerProcess] = []
        self.blocks: list[SharedBlock] = []
        self._free: list[int] = []
        self._tasks: dict[WorkerProcess, list[Task]] = {}
        self._ended: dict[str, int] = {}
        self._trained_by: dict[str, WorkerProcess] = {}
        self.lost: set[str] = set()
        """Sites whose newest state went with a worker before it was on disk."""
        weakref.finalize(self, _stop_all, self.workers, os.getpid())

    def new_block(self) -> int:
        """The number of a new shared block."""
        self.blocks.append(SharedBlock.create())
        return len(self.blocks) - 1

    def run(self, job: Job, sites: Sequence[str], on_start: Callable[[str], None]) -> Iterator[Message]:
        """The answers of all sites, in their order; ``on_start`` is told when a worker begins with one."""
        self._ended.clear()
        waiting, expected, answers = dict(enumerate(sites)), job.expected.of(sites), dict[int, Message]()
        window = window_size(self.count, len(sites), self._message_bytes, _WAITING_ANSWERS)
        finished = False
        try:
            self._start_missing()
            for position in range(len(sites)):
                while position not in answers:
                    self._hand_out(job, waiting, position + window, expected, on_start)
                    answers |= self._collect(job, waiting, on_start)
                yield answers.pop(position)
            finished = True
        finally:
            if not finished:  # nobody waits any more for what the workers are doing
                self.stop()

    def settle(self) -> None:
        """Wait until every worker has its sites' states on disk; sites that lost theirs are in ``lost``."""
        for worker in [worker for worker in self.workers if worker.unsaved]:
            try:
                worker.channel.send({"work": "settle", "new": []})
                _require_no_error(worker.channel.receive()[0])
                worker.unsaved = None
            except (EOFError, OSError):
                self._replace(worker)

    def stop(self) -> None:
        """End all workers now; the next task starts new ones. A round that was not finished is not settled either."""
        self.lost.clear()
        for tasks in self._tasks.values():
            self._free += [task.answer for task in tasks]
        self._tasks.clear()
        self._trained_by.clear()
        _stop_all(self.workers, os.getpid())

    def _start_missing(self) -> None:
        while len(self.workers) < self.count:
            worker = self._start(self.workers)
            self.workers.append(worker)
            self._tasks[worker] = []

    def _hand_out(
        self, job: Job, waiting: dict[int, str], limit: int, expected: Mapping[str, float],
        on_start: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Give each free worker a site; while many wait, also the next one, to have it at hand."""
        while True:
            positions = {site: position for position, site in sorted(waiting.items()) if position < limit}
            worker = min(self.workers, key=lambda worker: len(self._tasks[worker]))
            if not positions or len(self._tasks[worker]) >= (2 if len(positions) > self.count else 1):
                return
            site = next_site(list(positions), expected, self._familiar(worker))
            del waiting[positions[site]]
            task = Task(site, positions[site], self._free.pop() if self._free else self.new_block())
            if not self._tasks[worker]:
                on_start(site)
            self._tasks[worker].append(task)
            with suppress(OSError):  # it has ended; collecting finds out, and hands its tasks to another
                self._send(worker, job, task)

    def _familiar(self, worker: WorkerProcess) -> frozenset[str]:
        return frozenset(site for site, trainer in self._trained_by.items() if trainer is worker)

    def _send(self, worker: WorkerProcess, job: Job, task: Task) -> None:
        new = [number for number in (job.broadcast, task.answer) if number not in worker.blocks]
        worker.blocks.update(new)
        request = {
            "work": job.work, "site": task.site, "split": job.split, "detailed": job.detailed,
            "broadcast": job.broadcast, "answer": task.answer, "new": new,
            "forget": self._trained_by.get(task.site) is not worker,
        }  # fmt: skip
        worker.channel.send(request, [self.blocks[number].descriptor for number in new])

    def _collect(self, job: Job, waiting: dict[int, str], on_start: Callable[[str], None]) -> dict[int, Message]:
        """Wait for an answer of any worker, and take all that are there."""
        busy = {worker.channel.fileno(): worker for worker in self.workers if self._tasks[worker]}
        answers = {}
        for number in wait(list(busy)):
            worker = busy[number]  # type: ignore[index]
            try:
                reply, _ = worker.channel.receive()
            except (EOFError, OSError):
                self._replace(worker, waiting)
                continue
            _require_no_error(reply)
            task = self._tasks[worker].pop(0)
            if self._tasks[worker]:
                on_start(self._tasks[worker][0].site)
            worker.unsaved = reply["unsaved"]
            if (timeline := recording()) is not None and reply["spans"] is not None:
                timeline.add(reply["spans"], f"worker {worker.number + 1}")
            job.expected.note(task.site, reply["seconds"])
            if job.work == "train":
                self._trained_by[task.site] = worker
            release = partial(self._free.append, task.answer)
            answers[task.position] = from_tensors(*self.blocks[task.answer].read(release))
        return answers

    def _replace(self, worker: WorkerProcess, waiting: dict[int, str] | None = None) -> None:
        """Start another worker in the place of one that ended; its tasks wait again."""
        how, tasks = worker.wait(), self._tasks.pop(worker)
        self.workers.remove(worker)
        if worker.unsaved:
            self.lost.add(worker.unsaved)
        self._trained_by = {site: trainer for site, trainer in self._trained_by.items() if trainer is not worker}
        self._free += [task.answer for task in tasks]
        if waiting is not None:
            waiting |= {task.position: task.site for task in tasks}
        site = tasks[0].site if tasks else worker.unsaved or ""
        self._ended[site] = self._ended.get(site, 0) + 1
        if self._ended[site] >= _ATTEMPTS:
            raise PolyclinicError(
                f"The worker process at site '{site}' ended {_ATTEMPTS} times ({how}); perhaps memory is short: "
                "lower engine.workers or training.batch_size, and go on with --resume."
            )
        self._say(f"a worker process ended at site {site} ({how}); the site starts again in a new one")
        self._start_missing()


def _require_no_error(reply: Mapping[str, Any]) -> None:
    if "error" in reply:
        raise PolyclinicError(reply["error"])


def _stop_all(workers: list[WorkerProcess], owner: int) -> None:
    if os.getpid() == owner:  # a fork of the owner has the list too, and must leave its siblings alone
        while workers:
            workers.pop().stop()
