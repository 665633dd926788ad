"""How many optimiser steps stand behind each row of a comparison: rows with other numbers are hard to compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from polyclinic.core.files import read_json


def steps_of(grid: Path) -> dict[str, float | None]:
    """Mean over seeds of the steps that all sites took together, by method; ``None`` where no finished run tells."""
    plan = read_json(grid / "grid.json")
    found = _means(_summaries(grid, plan["runs"]))
    return {method: found.get(method) for method in plan["methods"]}


def steps_line(grid: Path) -> str:
    """One sentence for the caption of a table; nothing where no run tells, as those of earlier versions.

    One number where all methods have the same, else one for each method.
    """
    return _words({method: count for method, count in steps_of(grid).items() if count is not None})


def steps_words(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The same for finished runs, each with the name of its method."""
    return _words(_means(summaries))


def _words(steps: Mapping[str, float]) -> str:
    if not steps:
        return ""
    numbers = {f"{count:.0f}" for count in steps.values()}
    if len(numbers) == 1 and len(steps) > 1:
        return f"Optimiser steps of all sites together: {numbers.pop()} for every method."
    each = ", ".join(f"{method} {count:.0f}" for method, count in steps.items())
    return f"Optimiser steps of all sites together: {each}."


def _means(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    found: dict[str, list[int]] = {}
    for method, summary in summaries:
        if isinstance(steps := summary.get("steps"), int):
            found.setdefault(method, []).append(steps)
    return {method: mean(steps) for method, steps in found.items()}


def _summaries(grid: Path, runs: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for entry in runs:
        path = grid / entry["folder"] / "summary.json"
        if path.exists():
            yield entry["method"], read_json(path)
