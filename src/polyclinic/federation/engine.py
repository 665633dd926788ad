"""What the server asks of an engine. An engine carries messages; it never knows a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Tensors, Update


class Engine(Protocol):
    """Answers come in the order of ``sites``, whatever the order in which sites happen to finish.

    An engine that names this class as its base has ``settle``, ``started_by`` and ``close`` already, for sites that
    write before they answer, and for an engine without processes of its own.
    """

    partial: ClassVar[bool]
    """Whether a site may be away at the test, which then goes on without it."""
    about: str = ""
    """What it does and why, in one line for whoever started the run; empty if the recipe says so."""

    def started_by(self, command: Sequence[str]) -> None:  # noqa: ARG002
        """Take the command of a program that opens the run's sites itself, and serves an engine over a channel."""
        return

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Let each site train one round."""
        ...

    def settle(self) -> None:
        """Return when everything that the sites of the finished round must remember is on their disks.

        The server asks for this after the validation of a round and before its checkpoint: what a site has to write may
        go on beside aggregation and validation. Raises what a write has raised.
        """
        return

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Let each site score the model it would use on its own data."""
        ...

    def model(self, broadcast: Broadcast, site: str) -> Tensors:
        """A site's whole model, for protocols that test it at another site (one machine only)."""
        ...

    def close(self) -> None:
        """End what the engine has started, after a run or a round that failed; a later call starts it again."""
        return
