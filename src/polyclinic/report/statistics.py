"""What a grid shows and what it does not: every method against a reference, with intervals, tests and words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["better", "worse", "higher", "lower", "not shown", "equal", "not tested"]
"""``higher`` and ``lower`` are for metrics of which nobody knows which is better."""


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
    """Cases of which one method has no value (empty masks)."""
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    """Sites whose cases are in the intervals and tests."""
    verdict: Verdict
    sentence: str

    @property
    def interval(self) -> Interval | None:
        """The interval of the sentence: over cases and seeds where there are several seeds, else over cases."""
        return self.over_cases_and_seeds or self.over_cases


@dataclass(frozen=True)
class Fairness:
    """How evenly a method serves the sites, on the means over seeds."""

    worst_site: str
    worst: float
    deviation: float | None
    """Standard deviation over sites, from two sites on."""
    spread: float
    """The best site minus the worst."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the methods over sites (1 is best), with Friedman's test and Nemenyi's critical difference."""

    mean_ranks: dict[str, float]
    sites: tuple[str, ...]
    friedman_p: float | None
    critical_difference: float | None
    sentence: str


@dataclass(frozen=True)
class GridStatistics:
    """The statistics of one metric of a grid."""

    metric: str
    better: Literal["higher", "lower"] | None
    scale: float
    """What numbers are multiplied by for people."""
    reference: str
    methods: dict[str, MethodStatistics]
    """Every method but the reference, in the order of the table."""
    fairness: dict[str, Fairness]
    """Every method that has values, the reference too."""
    ranks: Ranks | None
    """``None`` without two methods and a site that all of them have."""
    note: str
    """What intervals and p-values are, in a line."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """A line a method."""
        return tuple(one.sentence for one in self.methods.values())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def grid_statistics(grid: Path, metric: str, reference: str | None = None) -> GridStatistics:
    """The statistics of a grid for one metric, against ``reference`` or else the first method.

    Runs that are not finished are left out and named in the sentences.
    """
    raise NotImplementedError
