"""Whether the rows of a table were trained out: by how much validation Dice still rose in the last third of the rounds.

A method that learns slower, because it changes images or pulls weights back, is behind where training stops early, and
may be level where it does not. A falling learning rate flattens every curve, so a curve that is flat proves nothing;
one that rises does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any

from polyclinic.core.wording import printable_line
from polyclinic.federation.stuck import PAGE

_MUCH = 0.01  # of Dice
_NAMED = 6


def late_rise_words(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """A sentence for the caption of a table; empty where no method rose by a point.

    ``summaries`` are of finished runs, each with the name of its method. Runs of earlier versions do not tell.
    """
    found: dict[str, list[float]] = {}
    methods = set()
    for method, summary in summaries:
        methods.add(method)
        if (rise := _rise(summary)) is not None:
            found.setdefault(method, []).append(rise)
    rising = {method: mean(rises) for method, rises in found.items() if mean(rises) >= _MUCH}
    if not rising:
        return ""
    each = [f"{printable_line(method)} {100 * rise:+.1f}" for method, rise in rising.items()]
    more = [f"{len(each) - _NAMED} more"] if len(each) > _NAMED else []
    outcome = "the order may be another" if len(methods) > 1 else "the result may be better"
    return (
        "Not trained out: validation Dice rose by a point or more in the last third of the rounds "
        f"({', '.join([*each[:_NAMED], *more])}); with more of them (training.rounds) {outcome}; "
        f"see {PAGE}."
    )


def _rise(summary: Mapping[str, Any]) -> float | None:
    facts = summary.get("late_rise")
    rise = facts.get("dice") if isinstance(facts, Mapping) else None
    return rise if isinstance(rise, int | float) else None
