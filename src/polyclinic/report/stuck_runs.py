"""Which runs found nothing for long, in words: their numbers say nothing about a method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.federation.stuck import PAGE


def stuck_line(summary: Mapping[str, Any]) -> str:
    """A sentence about a run, from its ``summary.json``; empty where it was never stuck."""
    parts = summary.get("stuck")
    if not isinstance(parts, Mapping) or not parts:
        return ""
    return f"Stuck at background: {_worst(parts)}; see {PAGE}."


def stuck_runs(grid: Path) -> list[str]:
    """The finished runs of a grid that were stuck, such as ``fedbn seed 1 (12 validated rounds, to the end)``."""
    found = []
    for entry in read_json(grid / "grid.json")["runs"]:
        path = grid / entry["folder"] / "summary.json"
        parts = read_json(path).get("stuck") if path.exists() else None
        if isinstance(parts, Mapping) and parts:
            found.append(f"{entry['method']} seed {entry['seed']} ({_worst(parts)})")
    return found


def stuck_runs_line(grid: Path) -> str:
    """A sentence for the caption of a table; empty where no run was stuck."""
    runs = stuck_runs(grid)
    return f"Stuck at background: {', '.join(runs)}; see {PAGE}." if runs else ""


def _worst(parts: Mapping[str, Mapping[str, int]]) -> str:
    """The part that was stuck longest."""
    name, facts = max(parts.items(), key=lambda part: part[1]["longest"])
    where = "" if len(parts) == 1 and name == "all" else f" in part {name}"
    end = ", to the end" if facts["at_end"] == facts["longest"] else ""
    return f"{facts['longest']} validated rounds{where}{end}"
