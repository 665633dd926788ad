"""``summary.json``: the run in one page of plain data."""

from __future__ import annotations

from statistics import mean
from typing import Any

from polyclinic.data.federation import Federation
from polyclinic.evaluation.aggregate import Row, for_json, summarise
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.bench import Bench, describe_components
from polyclinic.recipe import Recipe
from polyclinic.runs.folder import RunFolder


def shared_means(events: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """What components shared, as a mean a round: ``component -> site -> {"bytes": ..., "prototypes": ...}``."""
    found: dict[str, dict[str, list[dict[str, int]]]] = {}
    for event in events:
        for component, sites in event.get("shared_up", {}).items():
            for site, amount in sites.items():
                found.setdefault(component, {}).setdefault(site, []).append(amount)
    return {
        component: {site: {key: mean(a[key] for a in amounts) for key in amounts[0]} for site, amounts in sites.items()}
        for component, sites in found.items()
    }


def summary_of(
    recipe: Recipe, federation: Federation, bench: Bench, folder: RunFolder, parts: list[ProtocolPart],
    rows: list[Row], tested: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Everything that a table, a comparison or a reader needs first."""
    sites, average = summarise(rows)
    events = folder.events()
    phases = {phase: sum(e["seconds"][phase] for e in events) for phase in ("training", "validation")}
    phases["test"] = sum(facts["seconds"] for facts in tested.values())
    transfers = {name: facts["transfer"] for name, facts in tested.items() if "transfer" in facts}
    summary = {
        "method": recipe.method,
        "components": describe_components(bench),
        "federation": federation.name,
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
        "images_leave": bench.method.pooled,
        "refused": sum(len(e["refused"]) for e in events),
        "split_sha256": {part.name: part.split.hash for part in parts},
    }
    if transfers:
        summary["transfer"] = transfers
    return summary
