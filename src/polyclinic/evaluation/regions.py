"""Regions, unions of classes that are judged instead of single ones: where a model sees each, and what it is worth.

Probabilities of a region are summed before they are compared: where background has 0.4 and two classes of one region
0.3 each, the model says 0.6 for the region. The class map, whose largest class is the background there, cannot say
that. A region is seen where its sum is larger than the probability of every class outside of it. So a region of one
class is where the class map has it, a region holds all regions that are made of some of its classes, and none is
smaller than the union in the class map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyclinic.evaluation.case_metrics import Regions, case_metrics, dice_per_image
from polyclinic.evaluation.metric_registry import EmptyMasks


def region_masks(probabilities: Tensor, regions: Regions) -> Tensor:
    """Where each region is seen, bool ``(batch, region, *spatial)``, from ``(batch, class, *spatial)``.

    Of equal probabilities the lower class counts, as in a class map.

    >>> region_masks(torch.tensor([[[0.4], [0.3], [0.3]]]), [(1, 2), (2,)]).flatten().tolist()
    [True, False]
    """
    return torch.stack([_seen(probabilities, region) for region in regions], dim=1)


def _seen(probabilities: Tensor, region: Sequence[int]) -> Tensor:
    inside = probabilities[:, list(region)].sum(1)
    seen = torch.ones_like(inside, dtype=torch.bool)
    for other in set(range(probabilities.shape[1])) - set(region):
        rival = probabilities[:, other]
        seen &= inside > rival if other < min(region) else inside >= rival
    return seen


def region_dice(masks: Tensor, labels: Tensor, regions: Regions, empty_masks: EmptyMasks) -> Tensor:
    """Dice of every image and region, ``(batch, region)``, of masks ``(batch, region, *spatial)`` and class maps."""
    columns = [
        dice_per_image(masks[:, number], torch.isin(labels, labels.new_tensor(list(region))), 2, empty_masks)
        for number, region in enumerate(regions)
    ]
    return torch.cat(columns, dim=1)


def region_metrics(
    masks: NDArray[Any],
    truth: NDArray[Any],
    regions: Regions,
    metrics: Sequence[str],
    spacing: Sequence[float] | None = None,
    empty_masks: EmptyMasks = "one-if-both-empty",
    distance_penalty: float | Literal["diagonal"] = "diagonal",
) -> dict[str, list[float]]:
    """As ``case_metrics``, a value for each region, of masks ``(region, *spatial)`` and a class map ``(*spatial)``."""
    result: dict[str, list[float]] = {metric: [] for metric in metrics}
    for mask, region in zip(masks, regions, strict=True):
        true = np.isin(truth, list(region))
        for metric, values in case_metrics(mask, true, 2, metrics, spacing, empty_masks, distance_penalty).items():
            result[metric] += values
    return result
