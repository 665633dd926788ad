"""All metrics by the name that a recipe uses: what each measures, in which unit, and which direction is better.

A metric is one function of a ``MaskPair``, registered with ``@metric``. A file of a recipe's ``plugins`` may register
one too. Evaluation, the policy for empty masks and every table read the entry; nothing else knows a metric by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Literal

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.once import once
from polyclinic.evaluation.mask_pair import MaskPair
from polyclinic.recipe import EvaluationSettings

Unit = Literal["percent", "distance", "none"]
Better = Literal["higher", "lower"]
EmptyMasks = Literal["one-if-both-empty", "ignore", "penalise"]
Measure = Callable[[MaskPair], float]


@dataclass(frozen=True)
class Metric:
    """One metric.

    ``unit`` is ``percent`` for a share from 0 to 1 that people read in %, ``distance`` for millimetres or pixels, and
    ``none`` for a plain number.
    """

    name: str
    unit: Unit
    better: Better
    measure: Measure

    @property
    def scale(self) -> float:
        """What a value is multiplied by for people."""
        return 100.0 if self.unit == "percent" else 1.0

    def when_empty(self, truth_empty: bool, prediction_empty: bool, policy: EmptyMasks, penalty: float) -> float:
        """The value where at least one mask is empty; ``penalty`` is the distance to a mask that is not there."""
        worst = self._worst(penalty)
        if policy == "ignore":
            return nan if truth_empty or self.unit == "distance" else worst
        if policy == "one-if-both-empty" and truth_empty and prediction_empty:
            return self._best()
        return worst

    def _best(self) -> float:
        """The value of two masks that agree; of a plain number nobody knows it."""
        return {"percent": float(self.better == "higher"), "distance": 0.0, "none": nan}[self.unit]

    def _worst(self, penalty: float) -> float:
        return {"percent": float(self.better == "lower"), "distance": penalty, "none": nan}[self.unit]


_METRICS: dict[str, Metric] = {}


def metric(name: str, *, unit: Unit, better: Better) -> Callable[[Measure], Measure]:
    """Register a function that measures two masks, neither of them empty."""

    def register(measure: Measure) -> Measure:
        if unit == "distance" and better == "higher":
            raise PolyclinicError(f"The metric '{name}' is a distance, so lower is better; write better='lower'.")
        if "/" in name:
            raise PolyclinicError(f"The metric '{name}' has a / in its name, which separates a metric and a class.")
        if name in _METRICS and _METRICS[name].measure is not measure:
            raise PolyclinicError(f"Two metrics are called '{name}'; rename one of them.")
        _METRICS[name] = Metric(name, unit, better, measure)
        return measure

    return register


@once
def _import_builtin() -> None:
    import polyclinic.evaluation.builtin_metrics  # noqa: F401 (registers them)


def known_metrics() -> dict[str, Metric]:
    """All metrics by name."""
    _import_builtin()
    return _METRICS


def find_metric(name: str) -> Metric:
    """The metric of this name, or a sentence with the closest one."""
    known = known_metrics()
    if name not in known:
        hint = suggestion(name, known) or "."
        raise PolyclinicError(f"evaluation.metrics: '{name}' is not a metric{hint} Known: {', '.join(known)}.")
    return known[name]


def check_metrics(settings: EvaluationSettings) -> None:
    """Stop before any work where a recipe asks for a metric that nobody registered; plugins are imported before."""
    for name in settings.metrics:
        find_metric(name)
