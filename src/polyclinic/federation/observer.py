"""Observers: what is told how a run goes, such as the record, the screen and trackers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def when(round_number: int) -> str:
    """A round in words; questions come before the first one."""
    return f"round {round_number + 1}" if round_number >= 0 else "before the first round"


class Observer:
    """Base class: is told every event and does nothing. Its ``on_*`` methods are the list of all events."""

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """A part of the protocol starts or goes on after ``done`` rounds."""

    def on_preparation(self, done: int, total: int) -> None:
        """So many images are prepared, of all that must be; not told where the cache has them."""

    def on_site(self, round_number: int, site: str) -> None:
        """A site's update was accepted."""

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """A site began, ended or missed something; engines that carry messages over a network tell this."""

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        """A site failed or its update was refused."""

    def on_round(self, event: dict[str, Any]) -> None:
        """A round is over; ``event`` is the line of the record."""

    def on_rollback(self, done: int) -> None:
        """A part goes on from the state after ``done`` rounds: what came after it no longer counts."""

    def on_message(self, text: str) -> None:
        """Something worth a line."""

    def on_result(self, summary: dict[str, Any]) -> None:
        """The run is over."""


EVENTS: tuple[str, ...] = tuple(name for name in vars(Observer) if name.startswith("on_"))
"""Names of all events, in the order of the class."""


class ForwardingObserver(Observer):
    """Base class of observers that treat all events alike: each one becomes a call of ``forward``."""

    def forward(self, event: str, *arguments: Any) -> None:
        """Handle the event of this name, one of ``EVENTS``; arguments are in the order of the event's method."""
        raise NotImplementedError


def _forwarding_method(event: str) -> Callable[..., None]:
    original: Callable[..., None] = getattr(Observer, event)
    signature = inspect.signature(original)

    def method(self: ForwardingObserver, *arguments: Any, **named: Any) -> None:
        bound = signature.bind(self, *arguments, **named)
        self.forward(event, *bound.args[1:])

    method.__name__, method.__doc__ = event, original.__doc__
    return method


for _event in EVENTS:
    setattr(ForwardingObserver, _event, _forwarding_method(_event))


class Observers(ForwardingObserver):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def forward(self, event: str, *arguments: Any) -> None:
        """Tell all of them, in their order."""
        for observer in self.observers:
            getattr(observer, event)(*arguments)
