"""``summary.json``: the run in one page of plain data."""

from __future__ import annotations

from math import nan
from statistics import mean
from typing import Any

from polyclinic.evaluation.aggregate import Row, for_json, summarise
from polyclinic.evaluation.aggregate import mean as nan_mean
from polyclinic.federation.workspace import Workspace, describe_components
from polyclinic.runs.folder import RunFolder


def shared_means(events: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """What components shared, as a mean a round: ``component -> site -> {"bytes": ..., "prototypes": ...}``."""
    amounts_by_site: dict[str, dict[str, list[dict[str, int]]]] = {}
    for event in events:
        for component, sites in event.get("shared_up", {}).items():
            for site, amount in sites.items():
                amounts_by_site.setdefault(component, {}).setdefault(site, []).append(amount)
    return {
        component: {site: {key: mean(a[key] for a in amounts) for key in amounts[0]} for site, amounts in sites.items()}
        for component, sites in amounts_by_site.items()
    }


def with_statistics(
    sites: dict[str, dict[str, float]], average: dict[str, float], tested: dict[str, Any]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Add sites that let only the statistics of their cases out: a mean over several parts counts cases."""
    statistics: dict[str, dict[str, list[dict[str, float | None]]]] = {}
    for facts in tested.values():
        for site, metrics in facts.get("stats", {}).items():
            for name, numbers in metrics.items():
                statistics.setdefault(site, {}).setdefault(name, []).append(numbers)
    if not statistics:
        return sites, average
    everyone = sites | {
        site: {name: _mean_over_cases(numbers) for name, numbers in metrics.items()}
        for site, metrics in statistics.items()
    }
    ordered = dict(sorted(everyone.items()))
    names = dict.fromkeys(name for values in ordered.values() for name in values)
    return ordered, {n: nan_mean(values[n] for values in ordered.values() if n in values) for n in names}


def _mean_over_cases(numbers: list[dict[str, float | None]]) -> float:
    known = [(part["mean"], part["count"] or 0) for part in numbers if part["mean"] is not None]
    total = sum(count for _, count in known)
    if len(known) == 1:
        return float(known[0][0])
    return sum(value * count for value, count in known) / total if total else nan


def summary_of(
    federation: str,
    workspace: Workspace,
    folder: RunFolder,
    splits: dict[str, Any],
    rows: list[Row],
    tested: dict[str, Any],
) -> dict[str, Any]:
    """Everything that a table, a comparison or a reader needs first.

    ``splits`` are the hashes of the parts' splits, ``tested`` what ``score_part`` found out beside rows, by part.
    """
    recipe = workspace.recipe
    sites, average = with_statistics(*summarise(rows), tested)
    events = folder.events()
    phases = {phase: sum(e["seconds"][phase] for e in events) for phase in ("training", "validation")}
    phases["test"] = sum(facts["seconds"] for facts in tested.values())
    transfers = {name: facts["transfer"] for name, facts in tested.items() if "transfer" in facts}
    summary = {
        "method": recipe.method,
        "components": describe_components(workspace),
        "federation": federation,
        "protocol": recipe.protocol.kind,
        "engine": recipe.engine.name,
        "seed": recipe.seed,
        "rounds": recipe.training.rounds,
        "tested_rounds": {name: facts["tested_round"] + 1 for name, facts in tested.items()},
        "sites": {site: for_json(metrics) for site, metrics in sites.items()},
        "average": for_json(average),
        "distances": "mm" if recipe.evaluation.units == "mm" else "pixels",
        "bytes_up": sum(sum(e["bytes_up"].values()) for e in events),
        "bytes_down": sum(sum(e["bytes_down"].values()) for e in events)
        + sum(f["bytes_down"] for f in tested.values()),
        "shared_up": shared_means(events),
        "seconds": sum(phases.values()),
        "seconds_by_phase": phases,
        "images_leave": workspace.method.pooled,
        "refused": sum(len(e["refused"]) for e in events),
        "split_sha256": splits,
    }
    untested = {site: reason for facts in tested.values() for site, reason in facts.get("untested", {}).items()}
    if untested:
        summary["untested"] = untested
    if transfers:
        summary["transfer"] = transfers
    for component in workspace.components:
        if facts := component.summary(events):
            summary[component.name] = facts
    return summary
