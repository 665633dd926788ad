"""Sites one after another in this process, on one network object."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ClassVar, TypeVar

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.registry import engine
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Tensors, Update
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace

_Answer = TypeVar("_Answer")


@engine("inprocess", "sites one after another in this process")
class InProcess:
    """The default engine. Training is lazy: a site starts when the server asks for the next update."""

    partial: ClassVar[bool] = False

    def __init__(self, workspace: Workspace, sites: dict[str, Site], observer: Observer | None = None) -> None:
        self.workspace = workspace
        self.sites = sites
        self.observer = observer or Observer()

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Train each site in turn; a site's memory goes to disk while the next one trains, the last before the end."""
        self._announce_waiting(broadcast, sites)
        with BackgroundWriter() as writer:
            for name in sites:
                self.observer.on_status(broadcast.round, name, "training")
                work = partial(self.sites[name].train, self.workspace, broadcast, writer.submit)
                yield guarded(name, broadcast.round, work)

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Score each site in turn."""
        self._announce_waiting(broadcast, sites)
        for name in sites:
            self.observer.on_status(broadcast.round, name, "scoring")
            work = partial(self.sites[name].evaluate, self.workspace, broadcast, split, detailed)
            answer = guarded(name, broadcast.round, work)
            if not isinstance(answer, Failure):  # of a failure the server tells
                self.observer.on_status(broadcast.round, name, "done")
            yield answer

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        """A site's whole model."""
        return self.sites[site].model(self.workspace, broadcast)

    def _announce_waiting(self, broadcast: Broadcast, sites: Sequence[str]) -> None:
        """Sites work one at a time: until its turn, a site of this round is waiting."""
        for name in sites:
            self.observer.on_status(broadcast.round, name, "waiting")


class BackgroundWriter:
    """One file at a time beside the training; whoever leaves the block knows that everything is on disk."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Wait for the file before, so that memory holds one at most, then start this one."""
        self.wait()
        self._pending = self._pool.submit(work)

    def wait(self) -> None:
        """Wait until everything is on disk; raises what went wrong there."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()


def guarded(site: str, round_number: int, work: Callable[[], _Answer]) -> _Answer | Failure:
    """A site's failure is an answer too: the round goes on without it. Our own full disk is not the site's fault."""
    try:
        return work()
    except PolyclinicError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Failure(site, round_number, f"{type(error).__name__}: {reason}", traceback.format_exc())
