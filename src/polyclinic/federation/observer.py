"""Who is told how a run goes: the record, the screen, trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def when(round_number: int) -> str:
    """A round in words; questions come before the first one."""
    return f"round {round_number + 1}" if round_number >= 0 else "before the first round"


class Observer:
    """Base class: hears everything, does nothing."""

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """A part of the protocol starts or goes on after ``done`` rounds."""

    def on_site(self, round_number: int, site: str) -> None:
        """A site's update was accepted."""

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """A site began, ended or missed something; engines that carry messages over a network tell this."""

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        """A site failed or its update was refused."""

    def on_round(self, event: dict[str, Any]) -> None:
        """A round is over; ``event`` is the line of the record."""

    def on_message(self, text: str) -> None:
        """Something worth a line."""

    def on_result(self, summary: dict[str, Any]) -> None:
        """The run is over."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_start(part, sites, rounds, done)

    def on_site(self, round_number: int, site: str) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_site(round_number, site)

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_status(round_number, site, status)

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_refusal(round_number, site, reason, details)

    def on_round(self, event: dict[str, Any]) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_round(event)

    def on_message(self, text: str) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_message(text)

    def on_result(self, summary: dict[str, Any]) -> None:
        """Pass it on."""
        for observer in self.observers:
            observer.on_result(summary)
