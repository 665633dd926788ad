"""Which runs found nothing for long, or never one of the classes, in words: their numbers say little about a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.core.wording import counted, printable_line
from polyclinic.federation.stuck import PAGE

_NOTHING = 0.01  # a Dice below it
_MOST = 6

Summaries = Iterable[tuple[str, Mapping[str, Any]]]
"""``summary.json`` of runs, each with the run's name."""


def stuck_line(summary: Mapping[str, Any]) -> str:
    """What went wrong in a run, from its ``summary.json``; empty where it was never stuck and found every class."""
    worst = _worst(summary)
    return _sentences([worst] if worst else [], _sites(summary), _lost(summary))


def stuck_status(summary: Mapping[str, Any]) -> str:
    """Where a run was stuck, for its line in a table; empty where it was not."""
    worst, sites = _worst(summary), _sites(summary)
    everywhere = [f"stuck at background for {worst}"] if worst else []
    return "; ".join([*everywhere, *([f"stuck at background at {', '.join(sites)}"] if sites else [])])


def run_summaries(grid: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The summaries of a grid's finished runs, each with a name such as ``fedbn seed 1``."""
    for entry in read_json(grid / "grid.json")["runs"]:
        path = grid / entry["folder"] / "summary.json"
        if path.exists():
            yield f"{entry['method']} seed {entry['seed']}", read_json(path)


def stuck_words(summaries: Summaries) -> str:
    """The same of runs by name, such as ``fedbn seed 1``, for the caption of their table."""
    summaries = list(summaries)
    stuck = [f"{name} ({worst})" for name, summary in summaries if (worst := _worst(summary))]
    sites = [words for name, summary in summaries for words in _sites(summary, f" of {name}")]
    by_class: dict[str, list[str]] = {}
    for name, summary in summaries:
        for label in _lost(summary):
            by_class.setdefault(label, []).append(name)
    return _sentences(stuck, sites, [f"{label} ({_listed(runs)})" for label, runs in by_class.items()])


def _sentences(stuck: list[str], sites: list[str], lost: list[str]) -> str:
    found = {"Stuck at background": stuck, "Stuck at background at single sites": sites, "Found at no site": lost}
    return " ".join(f"{what}: {_listed(names)}; see {PAGE}." for what, names in found.items() if names)


def _listed(names: list[str]) -> str:
    """As many as a line of a table's caption has room for."""
    more = [f"and {len(names) - _MOST} more"] if len(names) > _MOST else []
    return ", ".join([*names[:_MOST], *more])


def _worst(summary: Mapping[str, Any]) -> str:
    """How long a run was stuck as a whole."""
    return _rounds(_parts(summary))


def _sites(summary: Mapping[str, Any], of_run: str = "") -> list[str]:
    """Sites that found nothing while others found something, such as ``north of fedbn seed 1 (5 validated rounds)``."""
    parts = _parts(summary)
    tables = {part: facts["sites"] for part, facts in parts.items() if isinstance(facts.get("sites"), Mapping)}
    by_site = {
        site: {part: table[site] for part, table in tables.items() if isinstance(table.get(site), Mapping)}
        for site in dict.fromkeys(site for table in tables.values() for site in table)
    }
    stuck = {site: rounds for site, own in by_site.items() if (rounds := _rounds(own))}
    if len(stuck) > _MOST:
        return [f"{counted(len(stuck), 'site')}{of_run}"]
    return [f"{printable_line(str(site))}{of_run} ({rounds})" for site, rounds in stuck.items()]


def _parts(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a summary says of parts of the protocol that were stuck; it may be anything."""
    found = summary.get("stuck")
    parts = found.items() if isinstance(found, Mapping) else ()
    return {str(name): facts for name, facts in parts if isinstance(facts, Mapping)}


def _rounds(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Of the part that was stuck longest; what is no count of rounds is passed over."""
    known = {name: facts for name, facts in parts.items() if _counts(facts)}
    if not known:
        return ""
    name, facts = max(known.items(), key=lambda part: int(part[1]["longest"]))
    where = "" if name == "all" else f" in part {printable_line(name)}"
    end = ", to the end" if facts["at_end"] == facts["longest"] else ""
    return f"{counted(facts['longest'], 'validated round')}{where}{end}"


def _counts(facts: Mapping[str, Any]) -> bool:
    return all(isinstance(facts.get(name), int) for name in ("longest", "at_end")) and facts["longest"] > 0


def _lost(summary: Mapping[str, Any]) -> list[str]:
    """Classes without any Dice in the test of a model that found others: they were lost in training."""
    average = summary.get("average")
    scores = average if isinstance(average, Mapping) else {}
    dice = {key.partition("/")[2]: value for key, value in scores.items() if str(key).startswith("dice/")}
    lost = [label for label, value in dice.items() if isinstance(value, int | float) and value < _NOTHING]
    return [printable_line(label) for label in lost] if len(lost) < len(dice) else []
