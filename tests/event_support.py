"""Every event with sample arguments, and an observer that notes what it is told."""

from __future__ import annotations

import inspect
from typing import Any

from polyclinic.federation.observer import ForwardingObserver, Observer

SAMPLES: dict[str, Any] = {
    "part": "all", "sites": ["north", "south"], "rounds": 3, "done": 1, "total": 4, "round_number": 2, "site": "north",
    "status": "training", "reason": "failed", "details": "trace", "event": {"round": 0}, "text": "hello",
    "summary": {"average": {"dice": 0.5}},
}  # fmt: skip


class Listener(ForwardingObserver):
    """Notes every event."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, event: str, *arguments: Any) -> None:
        self.calls.append((event, *arguments))


def sample_arguments(event: str) -> dict[str, Any]:
    names = list(inspect.signature(getattr(Observer, event)).parameters)[1:]
    return {name: SAMPLES[name] for name in names}
