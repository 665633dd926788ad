"""No exchange at all: every site trains on its own and keeps its model."""

from __future__ import annotations

from collections.abc import Iterable

from polyclinic.components.base import Component
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Tensors, Update


@component
class NoExchange(Component):
    """Keeps every weight at the site."""

    name = "no_exchange"
    level = "update"
    equations = ("w_m stays at site m",)
    aggregates = True
    streams = True

    def keeps(self, name: str) -> bool:  # noqa: ARG002
        """All of them."""
        return True

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """Let every site train and leave the server's weights as they are."""
        for _ in updates:
            pass
        return dict(server.previous)
