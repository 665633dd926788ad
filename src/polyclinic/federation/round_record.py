"""What one round adds up to at the server, for its record and for the components that combine what sites shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from polyclinic.exchange.checks import fits_mean, shared_amount
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update


@dataclass
class RoundRecord:
    """By site, but for warnings and the notes of components; only accepted updates are in it."""

    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    shared: dict[str, dict[str, Tensors]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    shared_up: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def add(self, update: Update, declared: Mapping[str, tuple[Shared, ...]]) -> None:
        """Note an accepted update; ``declared`` says of each component what it shares."""
        site = update.site
        self.samples[site], self.losses[site], self.steps[site] = update.samples, update.losses, update.steps
        self.bytes_up[site], self.seconds[site] = update.bytes, update.seconds
        for component, tensors in update.shared.items():
            self.shared.setdefault(component, {})[site] = tensors
            self.shared_up.setdefault(component, {})[site] = shared_amount(tensors, declared[component])

    def drop(self, site: str) -> None:
        """Take back what an accepted update added."""
        for by_site in (self.losses, self.samples, self.steps, self.bytes_up, self.seconds):
            by_site.pop(site)
        for by_component in (self.shared, self.shared_up):
            for sites in by_component.values():
                sites.pop(site, None)

    def plain_losses(self) -> dict[str, dict[str, float | None]]:
        """The losses as JSON can hold them and charts can average them: ``None`` for NaN, infinite and endless ones."""
        return {
            site: {term: value if isfinite(value) and fits_mean(value) else None for term, value in terms.items()}
            for site, terms in self.losses.items()
        }

    def reasons(self) -> str:
        """Why sites were refused, those with one reason together."""
        sites_by_reason: dict[str, list[str]] = {}
        for site, reason in self.refused.items():
            sites_by_reason.setdefault(reason, []).append(site)
        return "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in sites_by_reason.items())
