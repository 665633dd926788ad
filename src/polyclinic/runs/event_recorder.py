"""The observer that writes the run folder's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyclinic.federation.observer import Observer, when
from polyclinic.runs.folder import RunFolder


class EventRecorder(Observer):
    """One line a round into ``events.jsonl``; failures with their tracebacks into ``problems.log``."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.part = ""

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:  # noqa: ARG002
        """Drop what was recorded after the checkpoint."""
        self.part = part
        self.folder.drop_events_after(part, done)

    def on_rollback(self, done: int) -> None:
        """Drop the rounds that were taken back."""
        self.folder.drop_events_after(self.part, done)

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        """Keep the whole story for the person who mends it."""
        part = f"[{self.part}] " if self.part else ""
        self.folder.log(f"{part}{when(round_number)}, site {site}: {reason}\n{details}")

    def on_round(self, event: dict[str, Any]) -> None:
        """Add the round to the record."""
        self.folder.add_event({"part": self.part, **event})
