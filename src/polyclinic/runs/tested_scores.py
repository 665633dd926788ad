"""From what the test of each part of a protocol left behind to the values of sites, and their average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isnan, nan
from statistics import stdev
from typing import Any

from polyclinic.evaluation.aggregate import Row, are_numbered, for_json, mean, summarise

Scores = tuple[dict[str, dict[str, float]], dict[str, float]]
"""The values of each site by metric, and their average over sites."""


def told_apart(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Rows by part, where ``case-1`` of one part is another case than ``case-1`` of the next: ``fold-1/case-1``.

    A site whose policy gives numbers for names begins anew in every part. Where names are names they stay.
    """
    by_site: dict[str, list[Row]] = {}
    parts: dict[str, set[str]] = {}
    for part, own in rows.items():
        for row in own:
            by_site.setdefault(row["site"], []).append(row)
            parts.setdefault(row["site"], set()).add(part)
    numbered = {site for site, own in by_site.items() if len(parts[site]) > 1 and are_numbered(own)}
    return {
        part: [{**row, "case": f"{part}/{row['case']}"} if row["site"] in numbered else row for row in own]
        for part, own in rows.items()
    }


def scores_table(rows: Mapping[str, Sequence[Row]], tested: Mapping[str, Any], repeated: bool) -> dict[str, Any]:
    """``sites`` and ``average`` as ``summary.json`` holds them, from rows and facts by part.

    Parts that test different cases are taken together. Where ``repeated`` splits test a case several times, each part
    has values of its own (``repeats``), of which there are the mean and the standard deviation (``deviation``).
    """
    if not repeated:
        return _table(_with_statistics(*summarise(chain.from_iterable(rows.values())), tested))
    repeats = {name: _with_statistics(*summarise(rows[name]), {name: tested[name]}) for name in rows}
    return {
        **_table(_over_repeats(list(repeats.values()), mean)),
        "deviation": _table(_over_repeats(list(repeats.values()), _deviation)),
        "repeats": {name: _table(scores) for name, scores in repeats.items()},
    }


def _table(scores: Scores) -> dict[str, Any]:
    sites, average = scores
    return {"sites": {site: for_json(metrics) for site, metrics in sites.items()}, "average": for_json(average)}


def _over_repeats(repeats: Sequence[Scores], over: Callable[[list[float]], float]) -> Scores:
    """Each value of a site, and each average, over the repeats that have it."""

    def joined(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for table in tables for name in table)
        return {name: over([table[name] for table in tables if name in table]) for name in names}

    sites = dict.fromkeys(site for by_site, _ in repeats for site in by_site)
    by_site = {site: joined([values[site] for values, _ in repeats if site in values]) for site in sorted(sites)}
    return by_site, joined([average for _, average in repeats])


def _deviation(values: list[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return stdev(known) if len(known) > 1 else nan


def _with_statistics(
    sites: dict[str, dict[str, float]], average: dict[str, float], tested: Mapping[str, Any]
) -> Scores:
    """Add sites that let only the statistics of their cases out: a mean over several parts counts cases."""
    statistics: dict[str, dict[str, list[dict[str, float | None]]]] = {}
    for facts in tested.values():
        for site, metrics in facts.get("stats", {}).items():
            for name, numbers in metrics.items():
                statistics.setdefault(site, {}).setdefault(name, []).append(numbers)
    if not statistics:
        return sites, average
    everyone = sites | {
        site: {name: _mean_over_cases(numbers) for name, numbers in metrics.items()}
        for site, metrics in statistics.items()
    }
    ordered = dict(sorted(everyone.items()))
    names = dict.fromkeys(name for values in ordered.values() for name in values)
    return ordered, {n: mean(values[n] for values in ordered.values() if n in values) for n in names}


def _mean_over_cases(numbers: list[dict[str, float | None]]) -> float:
    known = [(part["mean"], part["count"] or 0) for part in numbers if part["mean"] is not None]
    total = sum(count for _, count in known)
    if len(known) == 1:
        return float(known[0][0])
    return sum(value * count for value, count in known) / total if total else nan
