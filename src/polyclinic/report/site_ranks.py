"""Ranks of a grid's methods over its sites, and what they show."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import numpy as np

from polyclinic.core.wording import counted, printable_line
from polyclinic.evaluation.metric_registry import Better
from polyclinic.evaluation.ranks import critical_difference, friedman_p, site_ranks
from polyclinic.report.grid_cases import GridCases
from polyclinic.report.statistics_words import p_text


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the methods over sites (1 is best), with Friedman's test and Nemenyi's critical difference."""

    mean_ranks: dict[str, float]
    """From the best method on."""
    sites: tuple[str, ...]
    """Sites of which every ranked method has a value: means over the seeds that all of them have finished."""
    friedman_p: float | None
    """From three methods and two sites on."""
    critical_difference: float | None
    """How far two mean ranks must be apart; where there is a ``friedman_p``."""
    sentence: str


def ranks_of(cases: GridCases, metric: str, better: Better) -> Ranks | None:
    """Rank the methods that have finished runs; ``None`` without two of them and a site that they share."""
    methods = [method for method in cases.methods if cases.runs[method]]
    seeds = [seed for seed in cases.seeds if all(seed in cases.runs[method] for method in methods)]
    values = {site: _row(cases, methods, seeds, site, metric) for site in cases.sites}
    shared = {site: row for site, row in values.items() if row is not None}
    if len(methods) < 2 or not shared:
        return None
    ranks = site_ranks(np.array(list(shared.values())), better)
    p = friedman_p(ranks)
    apart = None if p is None else critical_difference(len(methods), len(shared))
    means = dict(zip(methods, map(float, ranks.mean(axis=0)), strict=True))
    ordered = dict(sorted(means.items(), key=lambda item: item[1]))
    return Ranks(ordered, tuple(shared), p, apart, _sentence(ordered, len(shared), p, apart))


def _row(cases: GridCases, methods: list[str], seeds: list[int], site: str, metric: str) -> list[float] | None:
    """The mean over seeds of each method at a site, if all are known."""
    columns = [[cases.runs[method][seed].site(site, metric) for seed in seeds] for method in methods]
    known = [[value for value in column if value is not None] for column in columns]
    return [mean(column) for column in known] if all(known) else None


def _sentence(ranks: dict[str, float], sites: int, p: float | None, apart: float | None) -> str:
    names = ", ".join(f"{printable_line(method)} {rank:.2f}" for method, rank in ranks.items())
    start = f"Mean ranks over {counted(sites, 'site')}, 1 is best: {names}"
    if p is None or apart is None:
        return f"{start}."
    shown = "no difference is shown" if p >= 0.05 else f"ranks that are {apart:.2f} apart differ (Nemenyi)"
    return f"{start}; Friedman {p_text(p)}: {shown}."
