"""The engine: sites to worker processes, their answers to the server in the order of the sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, cast

import torch

from polyclinic.core.machine import available_cores
from polyclinic.engines.registry import engine
from polyclinic.engines.workers.pool import Job, WorkerPool
from polyclinic.engines.workers.process import WorkerProcess, can_fork, fork_worker, launch_worker
from polyclinic.engines.workers.schedule import Expected
from polyclinic.engines.workers.serving import serve
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Message, Tensors, Update, to_tensors
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace


@engine("workers", "sites side by side in processes of this machine, tensors in shared memory")
class Workers(Engine):
    """Every worker has a network of its own, lent to one site after another, as the in-process engine does.

    Sites begin in the order of the time that they are expected to take. The server gets the answers in the order of
    ``sites``, so that sums, and with them all weights, equal those of one process bit for bit.
    """

    partial: ClassVar[bool] = False

    def __init__(
        self, workspace: Workspace, sites: dict[str, Site], observer: Observer | None = None, count: int | None = None
    ) -> None:
        """``count`` is the number of processes; by default that of the recipe, else one for each core or GPU."""
        self.workspace, self.sites, self.observer = workspace, sites, observer or Observer()
        settings = workspace.recipe.engine
        self._devices = _devices(workspace.device, settings.device)
        self._command: Sequence[str] = ()
        places = len(self._devices) if self._devices[0] != "cpu" else available_cores() // settings.threads
        count = min(count or settings.workers or max(1, places), len(sites))
        message_bytes = Broadcast(0, workspace.initial_exchanged).bytes
        self.pool = WorkerPool(count, self._start, message_bytes, self.observer.on_message)
        self._training = Job("train", self.pool.new_block(), Expected(self._training_images))
        self._evaluations: dict[tuple[str, bool], Job] = {}

    def started_by(self, command: Sequence[str]) -> None:
        """Take the command of a program that opens the sites by itself, for where this process cannot be forked."""
        self._command = command

    def _start(self, others: Sequence[WorkerProcess]) -> WorkerProcess:
        threads = self.workspace.recipe.engine.threads
        if can_fork(self.workspace.device.type, threads) or not self._command:
            return fork_worker(partial(serve, self.workspace, self.sites), others)
        return launch_worker(self._command, self._devices, others)

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Train sites side by side."""
        yield from cast("Iterator[Update | Failure]", self._run(self._training, broadcast, sites, "training"))

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Score sites side by side."""
        if self.workspace.kept:
            self.settle()  # any worker may be asked for a site, whose kept weights then come from the disk
        if (split, detailed) not in self._evaluations:
            expected = Expected(lambda site: len(self.sites[site].data.labelled_indices(split)))
            self._evaluations[split, detailed] = Job("evaluate", self.pool.new_block(), expected, split, detailed)
        job = self._evaluations[split, detailed]
        for answer in cast("Iterator[Evaluation | Failure]", self._run(job, broadcast, sites, "scoring")):
            if not isinstance(answer, Failure):  # of a failure the server tells
                self.observer.on_status(broadcast.round, answer.site, "done")
            yield answer

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        """A site's whole model."""
        self.settle()
        return self.sites[site].model(self.workspace, broadcast)

    def settle(self) -> None:
        """Have the states of all sites on disk; those that were lost with a worker are made again."""
        self.pool.settle()
        while self.pool.lost:
            lost = sorted(self.pool.lost)
            self.pool.lost.clear()
            for _ in self.pool.run(self._training, lost, lambda _: None):
                pass  # the same update as before: only the state is wanted
            self.pool.settle()

    def close(self) -> None:
        """End all workers."""
        self.pool.stop()

    def _run(self, job: Job, broadcast: Broadcast, sites: Sequence[str], status: str) -> Iterator[Message]:
        for site in sites:
            self.observer.on_status(broadcast.round, site, "waiting")
        self.pool.blocks[job.broadcast].write(*to_tensors(broadcast))
        tell: Callable[[str], None] = lambda site: self.observer.on_status(broadcast.round, site, status)  # noqa: E731
        yield from self.pool.run(job, sites, tell)

    def _training_images(self, site: str) -> int:
        return len(self.sites[site].data.training_indices())


def _devices(device: torch.device, wanted: str) -> list[str]:
    """The devices that workers take in turn: all GPUs, unless the recipe names one."""
    if device.type == "cuda" and wanted in ("auto", "cuda"):
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]
