"""Sites one after another in this process, on one network object."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from polyclinic.core.background_writer import BackgroundWriter
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.registry import engine
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Tensors, Update
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace

_Answer = TypeVar("_Answer")


@engine("inprocess", "sites one after another in this process")
class InProcess(Engine):
    """One network, one site at a time. Training is lazy: a site starts when the server asks for the next update."""

    partial: ClassVar[bool] = False

    def __init__(self, workspace: Workspace, sites: dict[str, Site], observer: Observer | None = None) -> None:
        self.workspace = workspace
        self.sites = sites
        self.observer = observer or Observer()
        self._writer, self._written_site = BackgroundWriter(), ""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Train each site in turn; its memory goes to disk beside what comes next, the last one's until ``settle``."""
        self.settle()  # of a round that did not come to its end
        self._announce_waiting(broadcast, sites)
        for name in sites:
            self.observer.on_status(broadcast.round, name, "training")
            work = partial(self.sites[name].train, self.workspace, broadcast, partial(self._write, name))
            yield guarded(name, broadcast.round, work)

    def settle(self) -> None:
        """Wait for the memory of the site that trained last."""
        self._writer.close()

    def _write(self, site: str, write: Callable[[], None]) -> None:
        self._writer.submit(write)
        self._written_site = site

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Score each site in turn."""
        self._announce_waiting(broadcast, sites)
        for name in sites:
            self.observer.on_status(broadcast.round, name, "scoring")
            if name == self._written_site:
                self.settle()  # its kept weights may not be on disk yet
            work = partial(self.sites[name].evaluate, self.workspace, broadcast, split, detailed)
            answer = guarded(name, broadcast.round, work)
            if not isinstance(answer, Failure):  # of a failure the server tells
                self.observer.on_status(broadcast.round, name, "done")
            yield answer

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        """A site's whole model."""
        self.settle()
        return self.sites[site].model(self.workspace, broadcast)

    def close(self) -> None:
        """Nothing is written after this."""
        self.settle()

    def _announce_waiting(self, broadcast: Broadcast, sites: Sequence[str]) -> None:
        """Sites work one at a time: until its turn, a site of this round is waiting."""
        for name in sites:
            self.observer.on_status(broadcast.round, name, "waiting")


def guarded(site: str, round_number: int, work: Callable[[], _Answer]) -> _Answer | Failure:
    """A site's failure is an answer too: the round goes on without it. Our own full disk is not the site's fault."""
    try:
        return work()
    except PolyclinicError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Failure(site, round_number, f"{type(error).__name__}: {reason}", traceback.format_exc())
