"""Rounds of methods on noise, in turns, for the tables of cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from polyclinic.data.federation import Task
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore, StateMemory
from polyclinic.federation.workspace import build_workspace
from polyclinic.preview.rehearsal import noise
from polyclinic.recipe.files import make_recipe

TASK = Task(("background", "nucleus"), 3, 2)


@dataclass(frozen=True)
class Federation:
    """Sites of noise, RGB images by default; ``mixed`` ones have as many unlabelled images as labelled ones."""

    sites: int
    images: int
    size: int
    mixed: bool = False
    task: Task = TASK

    def site(self, name: str) -> SiteData:
        return noise(name, self.images, self.mixed, self.task, (self.size,) * self.task.spatial_dims)


@dataclass
class Rounds(Observer):
    """What the rounds after the first took and sent; the first has neither prototypes nor styles."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    event: dict[str, Any] = field(default_factory=dict)

    def on_round(self, event: dict[str, Any]) -> None:
        self.event = event

    def over(self, other: Rounds, what: str = "wall") -> float:
        """Median of the ratios of neighbouring rounds."""
        return median(a / b for a, b in zip(getattr(self, what), getattr(other, what), strict=True))

    def bytes(self, way: str) -> int:
        """Bytes of the site that sends or receives most, in the last round."""
        return max(self.event[f"bytes_{way}"].values())


def server_of(method: str, settings: dict[str, Any], folder: Path, data: Federation, observer: Observer) -> Server:
    """A server with its sites in this process."""
    recipe = make_recipe({"federation": "memory", "method": method, "engine": {"device": "cpu"}, **settings})
    workspace, memory = build_workspace(recipe, data.task), StateMemory()
    names = [f"site{number}" for number in range(data.sites)]
    sites = {name: Site(data.site(name), SiteStore(folder / name, memory)) for name in names}
    return Server(workspace, InProcess(workspace, sites), names, folder, observer)


def take_turns(
    methods: Sequence[str], data: Federation, rounds: int, network: dict[str, Any], training: dict[str, Any]
) -> dict[str, Rounds]:
    """Run the rounds of all methods in turns, forwards and backwards; nothing is validated."""
    settings = {"network": network, "training": {"rounds": rounds, "validate_every": rounds + 1, **training}}
    measured = {method: Rounds() for method in methods}
    with tempfile.TemporaryDirectory() as folder:
        servers = {m: server_of(m, settings, Path(folder) / m, data, measured[m]) for m in methods}
        for number in range(rounds):
            for method in list(methods)[:: -1 if number % 2 else 1]:
                wall, cpu = time.perf_counter(), time.process_time()
                servers[method].round()
                if number:
                    measured[method].wall.append(time.perf_counter() - wall)
                    measured[method].cpu.append(time.process_time() - cpu)
    return measured
