"""A plugin for tests: the component ``holding`` stops a site in a round until a file lets it go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings, Level
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound


class HoldingSettings(ComponentSettings):
    folder: str = ""
    site: str = ""
    round: int = 0


@component
class Holding(Component):
    """Site ``site`` writes ``at-ROUND`` when it starts a round from ``round`` on, and waits for ``go-ROUND``."""

    name: ClassVar[str] = "holding"
    level: ClassVar[Level] = "objective"
    Settings = HoldingSettings

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        folder = Path(self.settings.folder)
        go = folder / f"go-{site.round}"
        if site.site != self.settings.site or site.round < self.settings.round or go.exists():
            return
        (folder / f"at-{site.round}").touch()
        deadline = time.monotonic() + 600
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
