"""``statistics.csv`` and ``statistics.json`` of a grid, and the fairness of its methods for ``table.md``."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyclinic.core.files import write_json, write_text
from polyclinic.report.marks import markdown_text
from polyclinic.report.statistics import GridStatistics, Interval, MethodStatistics
from polyclinic.report.tables import markdown_table, value_text

_COLUMNS = (
    "metric", "method", "reference", "difference", "cases_low", "cases_high", "cases_seeds_low", "cases_seeds_high",
    "p_t", "p_wilcoxon", "p_t_holm", "p_wilcoxon_holm", "wilcoxon_exact", "cohens_dz", "rank_biserial", "cases",
    "zeros", "left_out", "seeds", "mean_rank", "worst_site", "worst", "deviation_over_sites", "spread_over_sites",
    "verdict", "sentence",
)  # fmt: skip


def write_statistics(grid: Path, statistics: Sequence[GridStatistics]) -> None:
    """Write both files, every metric in each."""
    write_text(grid / "statistics.csv", statistics_csv(statistics))
    write_json(grid / "statistics.json", statistics_json(statistics))


def statistics_json(statistics: Sequence[GridStatistics]) -> dict[str, Any]:
    """All metrics as plain data, in the metrics' own units."""
    return {"reference": statistics[0].reference, "metrics": {one.metric: one.to_json() for one in statistics}}


def statistics_csv(statistics: Sequence[GridStatistics]) -> str:
    """A line for each metric and method, in full precision; empty where something is not defined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for one in statistics:
        for method in dict.fromkeys((one.reference, *one.methods)):
            writer.writerow(
                [one.metric, method, one.reference, *_paired(one.methods.get(method)), *_alone(one, method)]
            )
    return text.getvalue()


def fairness_markdown(statistics: GridStatistics) -> str:
    """Mean rank, worst site and spread of each method, as a table; empty without two methods and two sites."""
    if len(statistics.fairness) < 2 or all(one.deviation is None for one in statistics.fairness.values()):
        return ""
    ranks = statistics.ranks.mean_ranks if statistics.ranks else {}
    rows = [["method", "mean rank", "worst site", "its value", "deviation over sites", "largest - smallest"]]
    for method, one in statistics.fairness.items():
        numbers = (value_text(number, None, statistics.metric) for number in (one.worst, one.deviation, one.spread))
        rank = f"{ranks[method]:.2f}" if method in ranks else "-"
        rows.append([method, rank, markdown_text(one.worst_site), *numbers])
    return f"\n{markdown_table(rows)}\n\nFairness: {statistics.metric} over sites, on means over seeds.\n"


def _paired(one: MethodStatistics | None) -> list[Any]:
    """What compares a method with the reference; of the reference itself nothing."""
    if one is None:
        return [None] * (_COLUMNS.index("mean_rank") - _COLUMNS.index("difference"))
    return [
        one.difference, *_ends(one.over_cases), *_ends(one.over_cases_and_seeds), one.p_t, one.p_wilcoxon, one.p_t_holm,
        one.p_wilcoxon_holm, one.wilcoxon_exact, one.cohens_dz, one.rank_biserial, one.cases, one.zeros, one.left_out,
        len(one.seeds),
    ]  # fmt: skip


def _alone(statistics: GridStatistics, method: str) -> list[Any]:
    """What a method has by itself, and the words."""
    rank = statistics.ranks.mean_ranks.get(method) if statistics.ranks else None
    fair, one = statistics.fairness.get(method), statistics.methods.get(method)
    fairness = [None] * 4 if fair is None else [fair.worst_site, fair.worst, fair.deviation, fair.spread]
    return [rank, *fairness, *([None] * 2 if one is None else [one.verdict, one.sentence])]


def _ends(interval: Interval | None) -> list[float | None]:
    return [None, None] if interval is None else [interval.low, interval.high]
