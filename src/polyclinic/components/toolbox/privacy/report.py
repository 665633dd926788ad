"""What the sites of a run have spent, for ``summary.json``."""

from __future__ import annotations

from math import isfinite
from typing import Any

from polyclinic.components.toolbox.privacy.accounting import epsilon_after
from polyclinic.components.toolbox.privacy.coverage import ALWAYS_OPEN, Coverage


def releases_of(events: list[dict[str, Any]]) -> dict[str, int]:
    """Releases of every site: what it last reported, and one for each later round that it was asked in.

    An update that was late or refused had left the site all the same. Parts of a protocol (folds, sites left out) are
    trainings of their own on the same images, so theirs add up.
    """
    parts: dict[str, dict[str, int]] = {}
    for event in events:
        counts = parts.setdefault(event.get("part", ""), {})
        reported = event["notes"].get("privacy", {}).get("releases", {})
        for site in event["sites"]:
            counts[site] = max(counts.get(site, 0) + 1, int(reported.get(site, 0)))
    sites = sorted({site for counts in parts.values() for site in counts})
    return {site: sum(counts.get(site, 0) for counts in parts.values()) for site in sites}


def summary_of(settings: Any, noise: float, coverage: Coverage, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Epsilon by site, what it covers and what it does not; ``None`` stands for an epsilon without bound."""
    releases = releases_of(events)
    spent = {site: epsilon_after(count, noise, settings.delta) for site, count in releases.items()}
    largest = max(spent.values(), default=0.0)
    return {
        "sites": {
            site: {"epsilon": _finite(spent[site]), "delta": settings.delta, "releases": count}
            for site, count in releases.items()
        },
        "epsilon": _finite(largest),
        "delta": settings.delta,
        "clip": settings.clip,
        "noise": noise,
        "covers": f"parameters that leave a site ({len(coverage.names)} tensors, {coverage.numbers} numbers)",
        "not_covered": [*coverage.uncovered, *ALWAYS_OPEN],
        "says": _line(largest, settings, coverage),
    }


def _line(largest: float, settings: Any, coverage: Coverage) -> str:
    """One line for the screen."""
    if not isfinite(largest):
        return "no bound on epsilon, because noise = 0"
    line = f"epsilon {largest:.3g} at delta {settings.delta:g} (largest of the sites), for weights alone"
    if coverage.uncovered:
        line += f"; not covered: {'; '.join(coverage.uncovered)}"
    return f"{line}; not towards those who know the seed" if settings.seeded else line


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
