"""How many optimiser steps stand behind each row of a table: rows with other numbers are hard to compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

_STEPS = "Optimiser steps of all sites together"


def mean_steps(summaries: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Mean over seeds of the steps that all sites took together, by method; those whose runs do not tell are left out.

    ``summaries`` are of finished runs, each with the name of its method.
    """
    found: dict[str, list[int]] = {}
    for method, summary in summaries:
        if isinstance(steps := summary.get("steps"), int):
            found.setdefault(method, []).append(steps)
    return {method: mean(steps) for method, steps in found.items()}


def steps_words(steps: Mapping[str, float]) -> str:
    """One sentence for the caption of a table; nothing where no run tells, as those of earlier versions.

    One number where all methods have the same, else one for each method.
    """
    return f"{_STEPS}: {_numbers(steps)}." if steps else ""


def steps_by_value(keys: Sequence[str], steps: Mapping[tuple[str, ...], Mapping[str, float]]) -> str:
    """The same for a study, whose ``steps`` are by the values of its keys: as few of the keys are named as tell all."""
    said = {values: _numbers(found) for values, found in steps.items() if found}
    for named in ((), *((key,) for key in keys), tuple(keys)):
        where: dict[str, set[str]] = {}
        for values, numbers in said.items():
            point = dict(zip(keys, values, strict=True))
            where.setdefault(" and ".join(f"{key}={point[key]}" for key in named), set()).add(numbers)
        if all(len(found) == 1 for found in where.values()):
            break
    places: dict[str, list[str]] = {}
    for place, (numbers, *_) in where.items():
        places.setdefault(numbers, []).append(place)
    each = (f"{numbers}{' with ' if any(at) else ''}{' or '.join(at)}" for numbers, at in places.items())
    return f"{_STEPS}: {'; '.join(each)}." if said else ""


def _numbers(steps: Mapping[str, float]) -> str:
    numbers = {f"{count:.0f}" for count in steps.values()}
    if len(numbers) == 1 and len(steps) > 1:
        return f"{numbers.pop()} for every method"
    return ", ".join(f"{method} {count:.0f}" for method, count in steps.items())
