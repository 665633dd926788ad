"""Which Flower node is which site, and since when it lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.serverapp import Grid


@dataclass(frozen=True)
class Node:
    """``life`` changes whenever the site's SuperNode starts anew: what was sent to the life before is lost."""

    number: int
    life: str = ""


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
        """Whether a site was there a short while ago: it may only be starting anew."""
        return site in self._seen and time.monotonic() - self._seen[site] <= seconds

    def of(self, site: str) -> Node | None:
        """The node of a site, if it is there."""
        return self._online.get(site)

    @property
    def online(self) -> tuple[str, ...]:
        """Sites that are there, in order."""
        return tuple(site for site in self.sites if site in self._online)

    def refresh(self) -> None:
        """Look who is there."""
        found: dict[str, Node] = {}
        for info in self.grid.get_nodes():
            name = self._name(info.node_id, info.name)
            if name in self.sites:
                found[name] = Node(info.node_id, info.last_activated_at)
        self._online = found
        self._seen |= dict.fromkeys(found, time.monotonic())

    def _name(self, number: int, given: str) -> str | None:
        if self.ask is None:
            return given
        if self._asked.get(number) is None:
            self._asked[number] = self.ask(number)
        return self._asked[number]
