"""Which runs found nothing for long, in words: their numbers say nothing about a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.core.wording import printable_line
from polyclinic.federation.stuck import PAGE


def stuck_line(summary: Mapping[str, Any]) -> str:
    """A sentence about a run, from its ``summary.json``; empty where it was never stuck."""
    worst = _worst(summary)
    return f"Stuck at background: {worst}; see {PAGE}." if worst else ""


def stuck_runs(grid: Path) -> list[str]:
    """The finished runs of a grid that were stuck, such as ``fedbn seed 1 (12 validated rounds, to the end)``."""
    return _named(_summaries(grid))


def stuck_runs_line(grid: Path) -> str:
    """A sentence for the caption of a table; empty where no run was stuck."""
    return stuck_words(_summaries(grid))


def stuck_words(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The same for runs by name, such as ``fedbn seed 1``."""
    runs = _named(summaries)
    return f"Stuck at background: {', '.join(runs)}; see {PAGE}." if runs else ""


def _named(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    return [f"{name} ({worst})" for name, summary in summaries if (worst := _worst(summary))]


def _summaries(grid: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for entry in read_json(grid / "grid.json")["runs"]:
        path = grid / entry["folder"] / "summary.json"
        if path.exists():
            yield f"{entry['method']} seed {entry['seed']}", read_json(path)


def _worst(summary: Mapping[str, Any]) -> str:
    """The part that was stuck longest; what is no count of rounds is passed over."""
    found = summary.get("stuck")
    parts = {name: facts for name, facts in found.items() if _counts(facts)} if isinstance(found, Mapping) else {}
    if not parts:
        return ""
    name, facts = max(parts.items(), key=lambda part: int(part[1]["longest"]))
    where = "" if len(parts) == 1 and name == "all" else f" in part {printable_line(str(name))}"
    end = ", to the end" if facts["at_end"] == facts["longest"] else ""
    return f"{facts['longest']} validated rounds{where}{end}"


def _counts(facts: Any) -> bool:
    return isinstance(facts, Mapping) and all(isinstance(facts.get(name), int) for name in ("longest", "at_end"))
