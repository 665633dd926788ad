"""How many optimiser steps stand behind each row of a comparison: rows with other numbers are hard to compare."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from polyclinic.core.files import read_json


def steps_of(grid: Path) -> dict[str, float | None]:
    """Mean over seeds of the steps that all sites took together, by method; ``None`` where no finished run tells."""
    plan = read_json(grid / "grid.json")
    found: dict[str, list[int]] = {method: [] for method in plan["methods"]}
    for entry in plan["runs"]:
        path = grid / entry["folder"] / "summary.json"
        steps = read_json(path).get("steps") if path.exists() else None
        if isinstance(steps, int):
            found[entry["method"]].append(steps)
    return {method: mean(steps) if steps else None for method, steps in found.items()}


def steps_line(grid: Path) -> str:
    """One sentence for the caption of a table; nothing where no run tells, as those of earlier versions.

    One number where all methods have the same, else one for each method.
    """
    steps = {method: count for method, count in steps_of(grid).items() if count is not None}
    if not steps:
        return ""
    numbers = {f"{count:.0f}" for count in steps.values()}
    if len(numbers) == 1 and len(steps) > 1:
        return f"Optimiser steps of all sites together: {numbers.pop()} for every method."
    each = ", ".join(f"{method} {count:.0f}" for method, count in steps.items())
    return f"Optimiser steps of all sites together: {each}."
