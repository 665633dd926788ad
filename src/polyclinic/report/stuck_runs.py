"""Which runs found nothing for long, or never one of the classes, in words: their numbers say little about a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.core.wording import printable_line
from polyclinic.federation.stuck import PAGE

_NOTHING = 0.01  # a Dice below it


def stuck_line(summary: Mapping[str, Any]) -> str:
    """What went wrong in a run, from its ``summary.json``; empty where it was never stuck and found every class."""
    worst = _worst(summary)
    return _sentences([worst] if worst else [], _lost(summary))


def stuck_runs(grid: Path) -> list[str]:
    """The finished runs of a grid that were stuck, such as ``fedbn seed 1 (12 validated rounds, to the end)``."""
    return _named(_summaries(grid))


def stuck_runs_line(grid: Path) -> str:
    """The same for the caption of a table; empty where all runs are sound."""
    return stuck_words(_summaries(grid))


def stuck_words(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The same for runs by name, such as ``fedbn seed 1``."""
    summaries = list(summaries)
    stuck = _named(summaries)
    by_class: dict[str, list[str]] = {}
    for name, summary in summaries:
        for label in _lost(summary):
            by_class.setdefault(label, []).append(name)
    return _sentences(stuck, [f"{label} ({', '.join(runs)})" for label, runs in by_class.items()])


def _sentences(stuck: list[str], lost: list[str]) -> str:
    found = {"Stuck at background": stuck, "Found at no site": lost}
    return " ".join(f"{what}: {', '.join(names)}; see {PAGE}." for what, names in found.items() if names)


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


def _lost(summary: Mapping[str, Any]) -> list[str]:
    """Classes without any Dice in the test of a model that found others: they were lost in training."""
    average = summary.get("average")
    scores = average if isinstance(average, Mapping) else {}
    dice = {key.partition("/")[2]: value for key, value in scores.items() if str(key).startswith("dice/")}
    lost = [label for label, value in dice.items() if isinstance(value, int | float) and value < _NOTHING]
    return [printable_line(label) for label in lost] if len(lost) < len(dice) else []


def _counts(facts: Any) -> bool:
    return isinstance(facts, Mapping) and all(isinstance(facts.get(name), int) for name in ("longest", "at_end"))
