"""Parts of a page that are computed from run folders: the share of a gap, and how far rows are trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe
from polyclinic.report.tables import Comparison, markdown_table

REFERENCES = (("local", "central"), ("fl_lower", "fl_upper"))
"""What bounds a method from below and from above, where a table has both."""


def events(run: Path) -> list[dict[str, Any]]:
    """What a run recorded, a round a line; nothing if it has not begun."""
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def last_validation(run: Path) -> float | None:
    """Validation Dice of a finished run's last round, mean over the parts of its protocol."""
    if not (run / "summary.json").exists():
        return None
    last = {event["part"]: event["validation"]["dice"] for event in events(run)}
    return mean(last.values())


def units_of(runs: Mapping[str, list[Path]]) -> str:
    """What distances are in, as the runs settled it."""
    recipes = [run / "recipe.toml" for own in runs.values() for run in own if (run / "summary.json").exists()]
    units = {load_recipe(path).evaluation.units for path in recipes}
    return " and ".join(sorted({"pixel": "pixels"}.get(unit, unit) for unit in units))


def gap_closed(compared: Comparison) -> list[str]:
    """How much of the way from a lower reference to an upper one each method goes, where a table has both."""
    return [line for ends in REFERENCES for line in _gap(compared, *ends)]


def _gap(compared: Comparison, lower: str, upper: str) -> list[str]:
    if not {lower, upper} <= set(compared.methods):
        return []
    low, high = (compared.mean(method, "average") for method in (lower, upper))
    if low is None or high is None or high <= low:
        return []
    ends = {method for pair in REFERENCES for method in pair}
    between = {m: v for m in compared.methods if m not in ends and (v := compared.mean(m, "average"))}
    title = [f"### Between `{lower}` and `{upper}`", ""]
    if not between or max(between.values()) <= low:
        return [*title, f"Every method is below `{lower}`: there is no share of the gap to speak of.", ""]
    rows = [["method", "share of the gap"]]
    rows += [[method, f"{(value - low) / (high - low):.0%}"] for method, value in between.items()]
    return [
        *title, markdown_table(rows), "",
        f"Of the {100 * (high - low):.2f} points of Dice between the two references; means over seeds.", "",
    ]  # fmt: skip


def part_of(compared: Comparison, methods: tuple[str, ...]) -> Comparison:
    """Some rows of a table, with differences to the first of them; statistics are for the whole."""
    values = {method: compared.values[method] for method in methods}
    return replace(compared, methods=methods, values=values, reference="", p_values={}, words=())


def trained_out(runs: Mapping[str, list[Path]], recipe: Recipe) -> list[str]:
    """Is it trained out? Validation Dice along the rounds, the last training loss, steps, and tests after rounds."""
    rounds, every = recipe.training.rounds, recipe.training.validate_every
    numbers = sorted({every * max(1, round(rounds * share / every)) for share in (0.25, 0.5, 0.75, 1)})
    tested = recipe.evaluation.rounds
    fitted = ["train"] if recipe.evaluation.training_images else []
    head = ["method", *(f"val {n}" for n in numbers), *fitted, "last loss", "steps", *(f"test {n}" for n in tested)]
    rows = [head]
    for method, folders in runs.items():
        finished = [run for run in folders if (run / "summary.json").exists()]
        if not finished:
            continue
        every_event = [event for run in finished for event in events(run)]
        cells = [percent([e["validation"].get("dice") for e in every_event if e["round"] == n - 1]) for n in numbers]
        last = [e for e in every_event if e["round"] == rounds - 1]
        losses = [terms["segmentation"] for e in last for terms in e["losses"].values() if "segmentation" in terms]
        summaries = [read_json(run / "summary.json") for run in finished]
        cells += [percent([s["training_dice"]["average"] for s in summaries])] if fitted else []
        cells += [f"{mean(losses):.3f}" if losses else "", str(max(summary["steps"] for summary in summaries))]
        cells += [percent([s["at_rounds"][str(n)]["average"]["dice"] for s in summaries]) for n in tested]
        rows.append([method, *cells])
    return [
        "### Is it trained out?", "", markdown_table(rows), "",
        "Mean validation Dice over sites and seeds after so many rounds, Dice of the last model on its training images",
        "(`train`), mean supervised loss of the last round, optimiser steps of all sites and rounds, test Dice after",
        "rounds.", "",
    ]  # fmt: skip


def percent(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.2f}" if known else ""
