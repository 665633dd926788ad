"""Overlap and surface-distance metrics of label maps, with an explicit policy for empty masks.

=================  =============================  ======================================================
policy             both masks empty               one mask empty
=================  =============================  ======================================================
one-if-both-empty  overlap 1, distance 0          overlap 0, distance = penalty
ignore             NaN                            truth empty: NaN; otherwise overlap 0, distance NaN
penalise           overlap 0, distance = penalty  overlap 0, distance = penalty
=================  =============================  ======================================================

The surface of a mask is its voxels with a face neighbour outside of it; what lies beyond the image is outside. With the
distances from every surface voxel of one mask to the nearest surface voxel of the other:

* ``hd95``: the larger one of the two directed 95th percentiles (linear interpolation between ranks);
* ``asd``: the mean distance from the surface of the prediction to the surface of the truth;
* ``assd``: the mean over the distances of both surfaces together, each surface voxel counting once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

DISTANCES = ("hd95", "asd", "assd")
EmptyMasks = Literal["one-if-both-empty", "ignore", "penalise"]
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
    pairs = np.bincount(true.ravel() * classes + predicted.ravel(), minlength=classes**2).reshape(classes, classes)
    result: dict[str, list[float]] = {metric: [] for metric in metrics}
    for region in regions or [(index,) for index in range(1, classes)]:
        own = list(region)
        hits, there, found = int(pairs[np.ix_(own, own)].sum()), int(pairs[own].sum()), int(pairs[:, own].sum())
        if not there or not found:
            values = {metric: _empty(metric, not there, not found, empty_masks, penalty) for metric in metrics}
        else:
            values = _overlaps(hits, there, found)
            if any(metric in DISTANCES for metric in metrics):
                values |= _distances(np.isin(predicted, own), np.isin(true, own), steps)
        for metric in metrics:
            result[metric].append(values[metric])
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
    there, found = pairs.sum(2) @ members.T, pairs.sum(1) @ members.T
    dice = 2 * hits / (there + found).clamp_min(1)
    if empty_masks == "ignore":
        return dice.masked_fill(there == 0, torch.nan)
    return dice.masked_fill(there + found == 0, 1.0) if empty_masks == "one-if-both-empty" else dice


def _array(labels: Tensor | NDArray[Any]) -> NDArray[np.int64]:
    """Wide integers, so that codes of class pairs do not overflow."""
    return np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels).astype(np.int64, copy=False)


def _check_range(low: int, high: int, classes: int) -> None:
    # A value beyond the classes would silently be counted as another pair of classes.
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be 0 to {classes - 1}, got {low} to {high}")


def _empty(metric: str, truth_empty: bool, prediction_empty: bool, policy: EmptyMasks, penalty: float) -> float:
    distance = metric in DISTANCES
    if policy == "ignore":
        return float("nan") if truth_empty or distance else 0.0
    if policy == "one-if-both-empty" and truth_empty and prediction_empty:
        return 0.0 if distance else 1.0
    return penalty if distance else 0.0


def _overlaps(hits: int, there: int, found: int) -> dict[str, float]:
    return {
        "dice": 2 * hits / (there + found),
        "iou": hits / (there + found - hits),
        "precision": hits / found,
        "sensitivity": hits / there,
    }


def _distances(predicted: NDArray[np.bool_], true: NDArray[np.bool_], steps: NDArray[np.float64]) -> dict[str, float]:
    """Surface distances of two masks ``(*spatial)`` that are not empty.

    MONAI's surface distances agree, but each of its metrics finds the surfaces anew, and even one of them takes 1.3 to
    4 times as long as all of this.
    """
    predicted, true = _crop(predicted, true)
    found, there = _surface(predicted), _surface(true)
    outward, inward = _nearest(found, there, steps), _nearest(there, found, steps)
    return {
        "hd95": float(max(np.percentile(outward, 95), np.percentile(inward, 95))),
        "asd": float(outward.mean()),
        "assd": float(np.concatenate([outward, inward]).mean()),
    }


def _crop(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Cut both masks to the bounding box of their union, beyond which there is only background anyway."""
    union = first | second
    box = []
    for axis in range(union.ndim):
        filled = np.flatnonzero(union.any(axis=tuple(other for other in range(union.ndim) if other != axis)))
        box.append(slice(filled[0], filled[-1] + 1))
    return first[tuple(box)], second[tuple(box)]


def _surface(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The same as ``mask & ~scipy.ndimage.binary_erosion(mask)``, seven times faster."""
    padded, interior = np.pad(mask, 1), mask.copy()
    for axis in range(mask.ndim):
        for side in (slice(0, -2), slice(2, None)):
            interior &= padded[tuple(side if other == axis else slice(1, -1) for other in range(mask.ndim))]
    return mask & ~interior


def _nearest(source: NDArray[np.bool_], target: NDArray[np.bool_], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances from every voxel of ``source`` to the nearest one of ``target``."""
    # Voxels of both surfaces have distance 0, and in a good segmentation they are most of all.
    apart = np.argwhere(source & ~target) * steps
    distances = np.zeros(np.count_nonzero(source))
    if len(apart):
        distances[: len(apart)] = cKDTree(np.argwhere(target) * steps, leafsize=32).query(apart)[0]
    return distances
