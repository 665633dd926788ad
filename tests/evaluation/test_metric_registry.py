from __future__ import annotations

from collections.abc import Iterator
from math import isnan, nan
from typing import Any

import numpy as np
import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.evaluation import metric_registry
from polyclinic.evaluation.case_metrics import case_metrics
from polyclinic.evaluation.metric_registry import Metric, check_metrics, find_metric, known_metrics, metric
from polyclinic.recipe import EvaluationSettings
from polyclinic.report.tables import metric_scale, metric_unit, value_text


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(known_metrics())
    yield
    metric_registry._METRICS.clear()
    metric_registry._METRICS.update(before)


def test_a_recipe_measures_all_built_in_metrics_by_default() -> None:
    assert set(EvaluationSettings().metrics) == set(known_metrics())
    check_metrics(EvaluationSettings())


def test_an_unknown_metric_gets_a_sentence_with_the_closest() -> None:
    with pytest.raises(PolyclinicError, match=r"evaluation\.metrics: 'dicee' is not a metric, did you mean 'dice'\?"):
        check_metrics(EvaluationSettings(metrics=("iou", "dicee")))


@pytest.mark.parametrize(
    ("unit", "better", "best", "worst"),
    [
        ("percent", "higher", 1.0, 0.0),
        ("percent", "lower", 0.0, 1.0),
        ("distance", "lower", 0.0, 7.0),
        ("none", "higher", nan, nan),
    ],
)
def test_empty_masks_by_unit_and_direction(unit: Any, better: Any, best: float, worst: float) -> None:
    entry = Metric("mine", unit, better, lambda masks: 0.5)

    def values(policy: Any) -> list[float]:
        return [entry.when_empty(*empty, policy, 7.0) for empty in ((True, True), (True, False), (False, True))]

    assert values("one-if-both-empty") == pytest.approx([best, worst, worst], nan_ok=True)
    assert values("penalise") == pytest.approx([worst] * 3, nan_ok=True)
    ignored = values("ignore")
    assert isnan(ignored[0])
    assert isnan(ignored[1])
    assert ignored[2] == pytest.approx(nan if unit == "distance" else worst, nan_ok=True)


def test_a_new_metric_is_measured_and_shown() -> None:
    @metric("missed", unit="percent", better="lower")
    def missed(masks: Any) -> float:
        return 1 - masks.hits / masks.true_count

    @metric("bumps", unit="none", better="lower")
    def bumps(masks: Any) -> float:
        return float(len(masks.surface_distances[0]))

    truth, prediction = np.zeros((6, 6), int), np.zeros((6, 6), int)
    truth[1:5, 1:5], prediction[1:5, 1:4] = 1, 1
    assert case_metrics(prediction, truth, 2, ("missed", "bumps")) == {"missed": [0.25], "bumps": [10.0]}
    assert (metric_unit("missed/core"), metric_scale("missed"), metric_scale("bumps")) == ("percent", 100.0, 1.0)
    assert [value_text(0.25, None, name) for name in ("missed", "bumps", "hd95")] == ["25.00", "0.25", "0.25"]


def test_a_metric_of_a_plugin_that_is_not_imported_is_shown_as_it_is() -> None:
    assert (metric_unit("away"), value_text(0.25, 0.5, "away")) == ("none", "0.25 ± 0.50")


def test_names_and_directions_that_make_no_sense_are_refused() -> None:
    def measure(masks: Any) -> float:
        return 0.0

    with pytest.raises(PolyclinicError, match="Two metrics are called 'dice'"):
        metric("dice", unit="percent", better="higher")(measure)
    with pytest.raises(PolyclinicError, match="'gap' is a distance, so lower is better"):
        metric("gap", unit="distance", better="higher")(measure)
    with pytest.raises(PolyclinicError, match="has a / in its name"):
        metric("dice/core", unit="percent", better="higher")(measure)
    assert find_metric("dice").measure is not measure
