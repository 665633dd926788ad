"""Which Flower node is which site, and since when it is active."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.serverapp import Grid


@dataclass(frozen=True)
class Node:
    """``activation`` is Flower's ``last_activated_at``; a SuperNode that restarts gets a new one and loses messages."""

    number: int
    activation: str = ""


class Nodes:
    """The sites that are connected now.

    With authenticated sites a node's name is the one under which the coordinator accepted its key, so that no site can
    speak for another. Without keys ``ask`` finds the name of a node by asking it.
    """

    def __init__(self, grid: Grid, sites: Sequence[str], ask: Callable[[int], str | None] | None = None) -> None:
        self.grid, self.sites, self.ask = grid, tuple(sites), ask
        self._asked: dict[int, str | None] = {}
        self._online: dict[str, Node] = {}
        self._seen: dict[str, float] = {}

    def seen_within(self, site: str, seconds: float) -> bool:
        """Whether a site was connected at most ``seconds`` ago: it may be restarting."""
        return site in self._seen and time.monotonic() - self._seen[site] <= seconds

    def of(self, site: str) -> Node | None:
        """The node of a site, if it is connected."""
        return self._online.get(site)

    @property
    def online(self) -> tuple[str, ...]:
        """Sites that are connected, in the order of ``sites``."""
        return tuple(site for site in self.sites if site in self._online)

    def refresh(self) -> None:
        """Ask Flower which nodes are connected."""
        online: dict[str, Node] = {}
        for info in self.grid.get_nodes():
            name = self._name(info.node_id, info.name)
            if name in self.sites:
                online[name] = Node(info.node_id, info.last_activated_at)
        self._online = online
        self._seen |= dict.fromkeys(online, time.monotonic())

    def _name(self, number: int, registered: str) -> str | None:
        if self.ask is None:
            return registered
        if self._asked.get(number) is None:
            self._asked[number] = self.ask(number)
        return self._asked[number]
