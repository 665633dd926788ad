from __future__ import annotations

import math

import numpy as np
import pytest

from polyclinic.evaluation.builtin_metrics import asd, assd, dice, hd95, iou, precision, sensitivity
from polyclinic.evaluation.mask_pair import MaskPair, surface
from polyclinic.evaluation.metric_registry import find_metric

Points = set[tuple[int, ...]]


def pair_of(predicted: np.ndarray, true: np.ndarray, spacing: tuple[float, ...]) -> MaskPair:
    hits = int((predicted & true).sum())
    labels = (predicted.astype(np.int64), true.astype(np.int64))
    return MaskPair(*labels, [1], hits, int(predicted.sum()), int(true.sum()), np.array(spacing))


def points(mask: np.ndarray) -> Points:
    return {tuple(point) for point in np.argwhere(mask).tolist()}


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest ranks."""
    ranked, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    return ranked[low] + (place - low) * (ranked[min(low + 1, len(ranked) - 1)] - ranked[low])


@pytest.mark.parametrize(("shape", "spacing"), [((7, 9), (2.0, 0.5)), ((4, 5, 6), (3.0, 1.0, 0.7))])
def test_every_metric_equals_its_definition_over_sets_of_voxels(
    shape: tuple[int, ...], spacing: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(len(shape))
    predicted, true = rng.random(shape) < 0.3, rng.random(shape) < 0.6
    masks, p, t = pair_of(predicted, true, spacing), points(predicted), points(true)
    assert dice(masks) == pytest.approx(2 * len(p & t) / (len(p) + len(t)))
    assert iou(masks) == pytest.approx(len(p & t) / len(p | t))
    assert precision(masks) == pytest.approx(len(p & t) / len(p))
    assert sensitivity(masks) == pytest.approx(len(p & t) / len(t))

    def directed(source: Points, target: Points) -> list[float]:
        steps = np.array(spacing)
        return [min(float(np.linalg.norm((np.array(a) - b) * steps)) for b in target) for a in source]

    edges = points(surface(predicted)), points(surface(true))
    outward, inward = directed(*edges), directed(*edges[::-1])
    assert hd95(masks) == pytest.approx(max(percentile(outward, 0.95), percentile(inward, 0.95)))
    assert asd(masks) == pytest.approx(sum(outward) / len(outward))
    assert assd(masks) == pytest.approx(sum(outward + inward) / len(outward + inward))


def test_asd_is_directed_from_the_prediction() -> None:
    true, predicted = np.zeros((1, 12), bool), np.zeros((1, 12), bool)
    true[0, [0, 10]] = predicted[0, 0] = True
    masks = pair_of(predicted, true, (1.0, 1.0))
    assert asd(masks) == 0.0
    assert assd(masks) == pytest.approx(10 / 3)
    assert hd95(masks) == pytest.approx(9.5)  # ranks 0 and 10, 95 % of the way


def test_overlaps_are_percent_and_better_high_distances_better_low() -> None:
    for name in ("dice", "iou", "precision", "sensitivity"):
        assert (find_metric(name).unit, find_metric(name).better) == ("percent", "higher")
    for name in ("hd95", "asd", "assd"):
        assert (find_metric(name).unit, find_metric(name).better) == ("distance", "lower")
