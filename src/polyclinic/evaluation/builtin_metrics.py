"""The metrics that come with polyclinic.

With the distances from every surface voxel of one mask to the nearest surface voxel of the other:

* ``hd95``: the larger one of the two directed 95th percentiles (linear interpolation between ranks);
* ``asd``: the mean distance from the surface of the prediction to the surface of the truth;
* ``assd``: the mean over the distances of both surfaces together, each surface voxel counting once.
"""

from __future__ import annotations

import numpy as np

from polyclinic.evaluation.mask_pair import MaskPair
from polyclinic.evaluation.metric_registry import metric


@metric("dice", unit="percent", better="higher")
def dice(masks: MaskPair) -> float:
    """Twice the overlap over the sum of both sizes."""
    return 2 * masks.hits / (masks.true_count + masks.predicted_count)


@metric("iou", unit="percent", better="higher")
def iou(masks: MaskPair) -> float:
    """Intersection over union."""
    return masks.hits / (masks.true_count + masks.predicted_count - masks.hits)


@metric("precision", unit="percent", better="higher")
def precision(masks: MaskPair) -> float:
    """How much of the prediction is true."""
    return masks.hits / masks.predicted_count


@metric("sensitivity", unit="percent", better="higher")
def sensitivity(masks: MaskPair) -> float:
    """How much of the truth is predicted."""
    return masks.hits / masks.true_count


@metric("hd95", unit="distance", better="lower")
def hd95(masks: MaskPair) -> float:
    """The 95th percentile of the Hausdorff distance."""
    return float(max(np.percentile(distances, 95) for distances in masks.surface_distances))


@metric("asd", unit="distance", better="lower")
def asd(masks: MaskPair) -> float:
    """Average surface distance."""
    return float(masks.surface_distances[0].mean())


@metric("assd", unit="distance", better="lower")
def assd(masks: MaskPair) -> float:
    """Average symmetric surface distance."""
    return float(np.concatenate(masks.surface_distances).mean())
