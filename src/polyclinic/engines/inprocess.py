"""Sites one after another in this process, on one network object."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from polyclinic.errors import PolyclinicError
from polyclinic.federation.bench import Bench
from polyclinic.federation.messages import Broadcast, Evaluation, Failure, Tensors, Update
from polyclinic.federation.site import Site

_Answer = TypeVar("_Answer")


class InProcess:
    """The default engine. Training is lazy: a site starts when the server asks for the next update."""

    def __init__(self, bench: Bench, sites: dict[str, Site]) -> None:
        self.bench = bench
        self.sites = sites

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Train each site in turn."""
        for name in sites:
            yield _guarded(name, broadcast.round, partial(self.sites[name].train, self.bench, broadcast))

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Score each site in turn."""
        for name in sites:
            work = partial(self.sites[name].evaluate, self.bench, broadcast, split, detailed)
            yield _guarded(name, broadcast.round, work)

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        """A site's whole model."""
        return self.sites[site].model(self.bench, broadcast)


def _guarded(site: str, round_number: int, work: Callable[[], _Answer]) -> _Answer | Failure:
    """A site's failure is an answer too: the round goes on without it. Our own full disk is not the site's fault."""
    try:
        return work()
    except PolyclinicError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Failure(site, round_number, f"{type(error).__name__}: {reason}", traceback.format_exc())
