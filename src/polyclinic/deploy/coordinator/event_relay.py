"""Events of the server's process, told to the process that a person looks at: a file of JSON lines between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.core.files import append_text, write_text
from polyclinic.federation.observer import EVENTS, ForwardingObserver, Observer


class Relay(ForwardingObserver):
    """The writing end: one line ``[event, argument, ...]`` for every event."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_text(path, "")

    def forward(self, event: str, *arguments: Any) -> None:
        """Write it at once."""
        append_text(self.path, json.dumps([event, *arguments]) + "\n", "free some space and go on with --resume")


class Follower:
    """The reading end: tells an observer here what a relay wrote since the last look."""

    def __init__(self, path: Path, observer: Observer) -> None:
        self.path, self.observer, self.position = path, observer, 0

    def look(self) -> None:
        """Pass on whole lines; half a line waits for its other half."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            if self.path.stat().st_size < self.position:  # begun anew
                self.position = 0
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                event, *arguments = json.loads(line)
                if event in EVENTS:
                    getattr(self.observer, event)(*arguments)
