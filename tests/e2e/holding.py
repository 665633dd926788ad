"""A plugin for tests: the component ``holding`` stops a site's round until a file allows it to go on."""

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
    """Site ``site`` writes ``at-ROUND`` when it begins that round and waits for ``go``."""

    name: ClassVar[str] = "holding"
    level: ClassVar[Level] = "objective"
    Settings = HoldingSettings

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        folder = Path(self.settings.folder)
        if site.site != self.settings.site or site.round != self.settings.round or (folder / "go").exists():
            return
        (folder / f"at-{site.round}").touch()
        ends = time.monotonic() + 200
        while not (folder / "go").exists() and time.monotonic() < ends:
            time.sleep(0.05)
