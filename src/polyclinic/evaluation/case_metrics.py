"""Overlap and surface-distance metrics of label maps, with an explicit policy for empty masks.

=================  =============================  ======================================================
policy             both masks empty               one mask empty
=================  =============================  ======================================================
one-if-both-empty  overlap 1, distance 0          overlap 0, distance = penalty
ignore             NaN                            truth empty: NaN; otherwise overlap 0, distance NaN
penalise           overlap 0, distance = penalty  overlap 0, distance = penalty
=================  =============================  ======================================================

"Overlap 1" is the best value of a metric in percent and "overlap 0" its worst, whichever direction is better; a metric
without a unit is NaN. What each metric measures is in ``builtin_metrics.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyclinic.evaluation.mask_pair import MaskPair
from polyclinic.evaluation.metric_registry import EmptyMasks, find_metric

Regions = Sequence[Sequence[int]]


def case_metrics(
    prediction: Tensor | NDArray[Any],
    truth: Tensor | NDArray[Any],
    classes: int,
    metrics: Sequence[str],
    spacing: Sequence[float] | None = None,
    empty_masks: EmptyMasks = "one-if-both-empty",
    distance_penalty: float | Literal["diagonal"] = "diagonal",
    regions: Regions | None = None,
) -> dict[str, list[float]]:
    """Measure an integer label map ``(*spatial)`` against the true one: a value for each foreground class.

    ``classes`` counts the background. ``regions`` are measured instead of single classes if they are given: each is a
    union of classes. Distances are in pixels without a ``spacing``, else in its units. The penalty
    ``diagonal`` is the length of the image's diagonal, in the same units.

    >>> truth, prediction = np.zeros((4, 4), int), np.zeros((4, 4), int)
    >>> truth[1, 1:3], prediction[1, 1:4] = 1, 1
    >>> case_metrics(prediction, truth, 2, ("dice", "precision", "sensitivity", "asd"))["dice"]
    [0.8]
    >>> case_metrics(prediction, truth, 2, ("asd",), spacing=(1.0, 3.0))
    {'asd': [1.0]}
    """
    predicted, true = _array(prediction), _array(truth)
    if predicted.shape != true.shape:
        raise ValueError(f"prediction and truth must have one shape, got {predicted.shape} and {true.shape}")
    _check_range(min(predicted.min(), true.min()), max(predicted.max(), true.max()), classes)
    steps = np.ones(true.ndim) if spacing is None else np.asarray(spacing, dtype=float)
    penalty = float(np.linalg.norm(true.shape * steps)) if distance_penalty == "diagonal" else float(distance_penalty)
    # Codes of class pairs must not overflow; up to 16 classes one byte a voxel holds them, which makes the rest fast.
    narrow = np.min_scalar_type(classes**2 - 1)
    predicted, true = predicted.astype(narrow, copy=False), true.astype(narrow, copy=False)
    codes = true.ravel() * narrow.type(classes) + predicted.ravel()
    pairs = np.bincount(codes, minlength=classes**2).reshape(classes, classes)
    entries = [find_metric(metric) for metric in metrics]
    result: dict[str, list[float]] = {metric: [] for metric in metrics}
    for region in regions or [(index,) for index in range(1, classes)]:
        members = list(region)
        hits = int(pairs[np.ix_(members, members)].sum())
        true_count, predicted_count = int(pairs[members].sum()), int(pairs[:, members].sum())
        masks = MaskPair(predicted, true, members, hits, predicted_count, true_count, steps)
        for entry in entries:
            empty = not true_count, not predicted_count
            value = entry.when_empty(*empty, empty_masks, penalty) if any(empty) else entry.measure(masks)
            result[entry.name].append(value)
    return result


def dice_per_image(
    predictions: Tensor,
    labels: Tensor,
    classes: int,
    empty_masks: EmptyMasks = "one-if-both-empty",
    regions: Regions | None = None,
) -> Tensor:
    """Dice of every image and foreground class, ``(batch, *spatial)`` twice to ``(batch, classes - 1)``.

    With ``regions`` the result is ``(batch, regions)``. Voxels are counted on the device of the inputs, the result is
    float64 on the CPU. It equals ``case_metrics``.

    >>> dice_per_image(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1]]), classes=2).tolist()
    [[0.6666666666666666]]
    """
    batch, predicted, true = len(labels), predictions.flatten(1).long(), labels.flatten(1).long()
    low, high = torch.stack([*predicted.aminmax(), *true.aminmax()]).aminmax()
    _check_range(int(low), int(high), classes)
    offsets = torch.arange(batch, device=true.device).unsqueeze(1) * classes**2
    codes = true * classes + predicted + offsets
    pairs = torch.bincount(codes.flatten(), minlength=batch * classes**2).view(batch, classes, classes).cpu()
    members = torch.zeros(len(regions) if regions else classes - 1, classes, dtype=pairs.dtype)
    for row, region in enumerate(regions or [(index,) for index in range(1, classes)]):
        members[row, list(region)] = 1
    hits = torch.einsum("rt,rp,btp->br", members, members, pairs).double()
    true_counts, predicted_counts = pairs.sum(2) @ members.T, pairs.sum(1) @ members.T
    both_counts = true_counts + predicted_counts
    dice = 2 * hits / both_counts.clamp_min(1)
    if empty_masks == "ignore":
        return dice.masked_fill(true_counts == 0, torch.nan)
    return dice.masked_fill(both_counts == 0, 1.0) if empty_masks == "one-if-both-empty" else dice


def _array(labels: Tensor | NDArray[Any]) -> NDArray[Any]:
    return np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)


def _check_range(low: int, high: int, classes: int) -> None:
    # A value beyond the classes would silently be counted as another pair of classes.
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be 0 to {classes - 1}, got {low} to {high}")
