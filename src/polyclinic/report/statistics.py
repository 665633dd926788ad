"""What a grid shows and what it does not: every method against a reference, with intervals, tests and words.

The unit is the case. A case's difference is averaged over the seeds that tested it, and tests count each case once;
`docs/explanation/statistics.md` says why, and what the words mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.evaluation.metric_registry import Better, known_metrics
from polyclinic.evaluation.paired_tests import PairedTests, holm, paired_tests
from polyclinic.evaluation.resampling import average_over_sites, bootstrap_interval
from polyclinic.report.grid_cases import GridCases, Pairs, RunCases, pairs_of, read_cases
from polyclinic.report.site_ranks import Ranks, ranks_of
from polyclinic.report.statistics_words import direction_word, note_of, sentence_of

Verdict = Literal["better", "worse", "higher", "lower", "not shown", "equal", "not tested"]
"""``higher`` and ``lower`` are for metrics of which nobody knows which is better."""
LEVEL = 0.05


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, in the metric's own unit (a share from 0 to 1, not %)."""

    low: float
    high: float


@dataclass(frozen=True)
class MethodStatistics:
    """One method against the reference. Numbers are in the metric's own unit; ``None`` is what is not defined."""

    method: str
    difference: float | None
    """Method minus reference, average over sites, on the cases that both have."""
    over_cases: Interval | None
    """Of the difference, cases resampled within their sites: these trained models on other cases."""
    over_cases_and_seeds: Interval | None
    """Cases and seeds resampled: the methods trained again, on other cases. From two seeds on."""
    p_t: float | None
    p_wilcoxon: float | None
    wilcoxon_exact: bool
    p_t_holm: float | None
    p_wilcoxon_holm: float | None
    """Corrected for all methods of the table; this is the p of tables and sentences."""
    cohens_dz: float | None
    rank_biserial: float | None
    cases: int
    """Cases that were tested with both methods, each counted once, in however many seeds."""
    zeros: int
    """Cases without any difference."""
    left_out: int
    """Values of cases that only one of the two methods has (empty masks)."""
    seeds: tuple[int, ...]
    """Seeds that both methods have finished."""
    sites: tuple[str, ...]
    """Sites whose cases are in the intervals and tests."""
    only_means: tuple[str, ...]
    """Sites that let no value of a case out."""
    linked: bool
    """Whether a case can be followed over seeds; if not, nothing is tested."""
    verdict: Verdict
    sentence: str

    @property
    def interval(self) -> Interval | None:
        """The interval of the sentence: over cases and seeds where there are several seeds, else over cases."""
        return self.over_cases_and_seeds or self.over_cases

    @property
    def direction(self) -> Literal[-1, 0, 1]:
        """The sign of what is certain: 0 unless p, interval and the direction of the cases all agree."""
        interval, p = self.interval, self.p_wilcoxon_holm
        if interval is None or p is None or p >= LEVEL or self.rank_biserial is None:
            return 0
        if interval.low > 0 and self.rank_biserial > 0:
            return 1
        return -1 if interval.high < 0 and self.rank_biserial < 0 else 0


@dataclass(frozen=True)
class Fairness:
    """How evenly a method serves the sites, on the means over its seeds."""

    worst_site: str
    worst: float
    deviation: float | None
    """Standard deviation over sites, from two sites on."""
    spread: float
    """The largest value of a site minus the smallest."""


@dataclass(frozen=True)
class GridStatistics:
    """The statistics of one metric of a grid."""

    metric: str
    better: Better | None
    scale: float
    """What numbers are multiplied by for people."""
    reference: str
    methods: dict[str, MethodStatistics]
    """Every method but the reference, in the order of the table."""
    fairness: dict[str, Fairness]
    """Every method that has values, the reference too; empty where nobody knows which direction is better."""
    ranks: Ranks | None
    """``None`` without two methods and a site that all of them have."""
    note: str
    """What intervals and p-values are, in a line; empty with one method."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """A line a method."""
        return tuple(one.sentence for one in self.methods.values())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def grid_statistics(grid: Path, metric: str, reference: str | None = None) -> GridStatistics:
    """The statistics of a grid for one metric, against ``reference`` or else the first method.

    Runs that are not finished are left out, and the sentences say so.
    """
    return statistics_of(read_cases(grid), metric, reference)


def statistics_of(cases: GridCases, metric: str, reference: str | None = None) -> GridStatistics:
    """The same from values that are read already, for those who want several metrics."""
    first = check_reference(cases.methods, reference)
    entry = known_metrics().get(metric.split("/")[0])
    better, scale = (None, 1.0) if entry is None else (entry.better, entry.scale)
    found = {method: _against(method, cases, metric, first) for method in cases.methods if method != first}
    corrected = _corrected(found)
    judged = {name: replace(one, verdict=_verdict(one, better)) for name, one in corrected.items()}
    methods = {
        name: replace(one, sentence=sentence_of(one, first, better, scale, cases.seeds)) for name, one in judged.items()
    }
    fairness = {} if better is None else _fairness(cases, metric, better)
    ranks = None if better is None else ranks_of(cases, metric, better)
    return GridStatistics(metric, better, scale, first, methods, fairness, ranks, note_of(methods.values()))


def check_reference(methods: tuple[str, ...], reference: str | None) -> str:
    """The method that others are compared with: the named one, which must be there, or the first."""
    if reference is None:
        return methods[0]
    reference = "".join(reference.split())  # as in a plan of a grid
    if reference not in methods:
        hint = suggestion(reference, methods) or "."
        raise PolyclinicError(f"--reference {reference}: not among the methods{hint} There are {', '.join(methods)}.")
    return reference


def _against(method: str, cases: GridCases, metric: str, reference: str) -> MethodStatistics:
    """A method's numbers, without what depends on the other methods."""
    own, others = cases.runs[method], cases.runs[reference]
    pairs = pairs_of(own, others, metric)
    differences, seeds = list(pairs.differences.values()), tuple(seed for seed in own if seed in others)
    tests = paired_tests(pairs.case_means)
    if not pairs.linked:
        tests = PairedTests(tests.cases, tests.zeros, None, None, False, None, None)
    difference = average_over_sites(differences, pairs.test_seeds) if differences else _of_tables(own, others, metric)
    return MethodStatistics(
        method, difference, _interval(pairs, over_seeds=False), _interval(pairs, over_seeds=True), tests.p_t,
        tests.p_wilcoxon, tests.exact, None, None, tests.cohens_dz, tests.rank_biserial, tests.cases, tests.zeros,
        pairs.alone, seeds, tuple(pairs.differences), pairs.only_means, pairs.linked, "not tested", "",
    )  # fmt: skip


def _interval(pairs: Pairs, over_seeds: bool) -> Interval | None:
    if not pairs.linked:
        return None
    bounds = bootstrap_interval(list(pairs.differences.values()), pairs.test_seeds, over_seeds)
    return None if bounds is None else Interval(*bounds)


def _of_tables(own: Mapping[int, RunCases], others: Mapping[int, RunCases], metric: str) -> float | None:
    """The difference of the averages where no value of a case is there, over seeds that both have."""
    averages = [(own[seed].average(metric), others[seed].average(metric)) for seed in own if seed in others]
    known = [value - other for value, other in averages if value is not None and other is not None]
    return mean(known) if known else None


def _corrected(found: Mapping[str, MethodStatistics]) -> dict[str, MethodStatistics]:
    """With p-values corrected for all methods of the table."""
    student = holm([one.p_t for one in found.values()])
    wilcoxon = holm([one.p_wilcoxon for one in found.values()])
    return {
        name: replace(one, p_t_holm=t, p_wilcoxon_holm=w)
        for (name, one), t, w in zip(found.items(), student, wilcoxon, strict=True)
    }


def _verdict(one: MethodStatistics, better: Better | None) -> Verdict:
    if one.p_wilcoxon is None:
        return "not tested"
    if one.zeros == one.cases:
        return "equal"
    if one.direction == 0 or len(one.seeds) < 2:
        return "not shown"
    return direction_word(one.direction, better)


def _fairness(cases: GridCases, metric: str, better: Better) -> dict[str, Fairness]:
    found = {}
    for method, runs in cases.runs.items():
        by_site = {site: [run.site(site, metric) for run in runs.values()] for site in cases.sites}
        known = {site: [value for value in values if value is not None] for site, values in by_site.items()}
        means = {site: mean(values) for site, values in known.items() if values}
        if means:
            worst = (min if better == "higher" else max)(means, key=means.__getitem__)
            numbers = list(means.values())
            deviation = stdev(numbers) if len(numbers) > 1 else None
            found[method] = Fairness(worst, means[worst], deviation, max(numbers) - min(numbers))
    return found
