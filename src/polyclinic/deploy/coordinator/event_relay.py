"""What the server's process observes, told to the process that a person looks at: a file of JSON lines between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyclinic.federation.observer import Observer

_EVENTS = frozenset({"on_start", "on_site", "on_status", "on_refusal", "on_round", "on_message", "on_result"})


class Relay(Observer):
    """Writes every call down."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def _write(self, name: str, *arguments: Any) -> None:
        self.file.write(json.dumps([name, *arguments]) + "\n")
        self.file.flush()

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """Write it down."""
        self._write("on_start", part, list(sites), rounds, done)

    def on_site(self, round_number: int, site: str) -> None:
        """Write it down."""
        self._write("on_site", round_number, site)

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """Write it down."""
        self._write("on_status", round_number, site, status)

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        """Write it down."""
        self._write("on_refusal", round_number, site, reason, details)

    def on_round(self, event: dict[str, Any]) -> None:
        """Write it down."""
        self._write("on_round", event)

    def on_message(self, text: str) -> None:
        """Write it down."""
        self._write("on_message", text)

    def on_result(self, summary: dict[str, Any]) -> None:
        """Write it down."""
        self._write("on_result", summary)


class Follower:
    """Reads what a relay wrote since the last look, and tells it to an observer here."""

    def __init__(self, path: Path, observer: Observer) -> None:
        self.path, self.observer, self.place = path, observer, 0

    def look(self) -> None:
        """Pass on whole lines; half a line waits for its other half."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.place)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.place += len(line)
                name, *arguments = json.loads(line)
                if name in _EVENTS:
                    told: Callable[..., None] = getattr(self.observer, name)
                    told(*arguments)
