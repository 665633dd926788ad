"""``summary.json``: the run in one page of plain data."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

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


def optimiser_steps(events: list[dict[str, Any]]) -> int | None:
    """Optimiser steps of all sites and parts together; ``None`` where an earlier version did not record a round's."""
    known = [event["steps"] for event in events if "steps" in event]
    return sum(sum(steps.values()) for steps in known) if len(known) == len(events) else None


def stuck_parts(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Parts that found nothing for long: most validated rounds in a row, and those in a row at the end.

    ``sites`` has the same by site, of those that found nothing for long while others found something.
    """
    parts: dict[str, dict[str, Any]] = {}
    for part in dict.fromkeys(event["part"] for event in events):
        own = [event for event in events if event["part"] == part]
        by_site = [event.get("stuck_sites", {}) for event in own]  # runs of earlier versions did not say
        names = sorted({site for sites in by_site for site in sites})
        sites = {site: _longest([counts.get(site, 0) for counts in by_site]) for site in names}
        facts = _longest([event.get("stuck", 0) for event in own])
        if facts["longest"] or sites:
            parts[part] = {**facts, "sites": sites} if sites else facts
    return parts


def _longest(counts: list[int]) -> dict[str, int]:
    return {"longest": max(counts), "at_end": counts[-1]}


def late_rise(events: list[dict[str, Any]]) -> dict[str, Any]:
    """By how much validation Dice rose in the last third of a run's rounds, mean over parts; empty if none can tell.

    Of a part it is the last validated round minus the last one in its first two thirds.
    """
    rises: list[float] = []
    for part in dict.fromkeys(event["part"] for event in events):
        own = [event for event in events if event["part"] == part]
        dice = {event["round"] + 1: value for event in own if (value := event["validation"]["dice"]) is not None}
        before = [number for number in dice if 3 * number <= 2 * max(dice)]
        if before:
            rises.append(dice[max(dice)] - dice[max(before)])
    return {"dice": mean(rises)} if rises else {}


def training_dice(tested: Mapping[str, Any]) -> dict[str, Any]:
    """Dice on training images, the mean over the parts of a protocol: by site, and the average over sites."""
    by_site: dict[str, list[float]] = {}
    for facts in tested.values():
        for site, dice in facts.get("training_dice", {}).items():
            if dice is not None:
                by_site.setdefault(site, []).append(dice)
    sites = {site: mean(values) for site, values in by_site.items()}
    return {"sites": sites, "average": mean(sites.values())} if sites else {}


def summary_of(
    federation: str,
    workspace: Workspace,
    folder: RunFolder,
    splits: dict[str, Any],
    scores: Mapping[str, Any],
    at_rounds: Mapping[int, Mapping[str, Any]],
    tested: Mapping[str, Any],
    tested_at_rounds: list[dict[str, Any]],
) -> dict[str, Any]:
    """Everything that a table, a comparison or a reader needs first.

    ``splits`` are the hashes of the parts' splits. ``scores`` is the table of the test and ``at_rounds`` that of each
    test after a round (``tested_scores.py``); ``tested`` is what ``score_part`` found out beside rows, by part, and
    ``tested_at_rounds`` the same of every test after a round.
    """
    recipe, tests = workspace.recipe, [*tested.values(), *tested_at_rounds]
    events = folder.events()
    phases = {phase: sum(e["seconds"][phase] for e in events) for phase in ("training", "validation")}
    phases["test"] = sum(facts["seconds"] for facts in tests)
    transfers = {name: facts["transfer"] for name, facts in tested.items() if "transfer" in facts}
    summary = {
        "method": recipe.method,
        "components": describe_components(workspace),
        "federation": federation,
        "protocol": recipe.protocol.kind,
        "engine": recipe.engine.name,
        "seed": recipe.seed,
        "rounds": recipe.training.rounds,
        "steps": optimiser_steps(events),
        "tested_rounds": {name: facts["tested_round"] + 1 for name, facts in tested.items()},
        **scores,
        "distances": "mm" if recipe.evaluation.units == "mm" else "pixels",
        "bytes_up": sum(sum(e["bytes_up"].values()) for e in events),
        "bytes_down": sum(sum(e["bytes_down"].values()) for e in events) + sum(facts["bytes_down"] for facts in tests),
        "shared_up": shared_means(events),
        "seconds": sum(phases.values()),
        "seconds_by_phase": phases,
        "images_leave": workspace.method.pooled,
        "refused": sum(len(e["refused"]) for e in events),
        "split_sha256": splits,
    }
    if stuck := stuck_parts(events):
        summary["stuck"] = stuck
    if rise := late_rise(events):
        summary["late_rise"] = rise
    if at_rounds:
        summary["at_rounds"] = {str(number): dict(table) for number, table in at_rounds.items()}
    untested = {site: reason for facts in tested.values() for site, reason in facts.get("untested", {}).items()}
    if untested:
        summary["untested"] = untested
    if transfers:
        summary["transfer"] = transfers
    if training := training_dice(tested):
        summary["training_dice"] = training
    for component in workspace.components:
        if facts := component.summary(events):
            summary[component.name] = facts
    return summary
