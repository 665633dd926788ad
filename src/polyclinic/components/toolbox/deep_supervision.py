"""The recipe's supervised loss of one pass, auxiliary classifiers included.

nnU-Net (Isensee et al., Nature Methods 2021): ``L = sum_i w_i L_i`` with ``w_i = 2**-i / sum_j 2**-j``, where ``L_0``
is the loss of the logits and ``L_i`` that of the classifier on ``decoder<i>`` against labels at that map's resolution,
of which each is the label of the nearest pixel.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.segmentation_loss import loss_options, segmentation_loss
from polyclinic.networks.base import Features, SegmentationNetwork
from polyclinic.networks.classifiers import auxiliary_heads
from polyclinic.recipe import PolicySettings, TrainingSettings


def supervised_loss(
    network: SegmentationNetwork,
    output: Features,
    labels: Tensor,
    training: TrainingSettings,
    policies: PolicySettings,
    main: Tensor | None = None,
) -> Tensor:
    """The loss of a pass over labelled images against ``labels`` ``(batch, *spatial)``.

    ``main`` is the loss of the logits where a component has one of its own; auxiliary classifiers have the recipe's.
    """
    options = loss_options(training, policies)
    total = segmentation_loss(output.logits, labels, **options) if main is None else main
    heads = auxiliary_heads(network)
    if not heads:
        return total
    weights = [2.0**-level for level in range(len(heads) + 1)]
    coarser = reversed(output.decoder[1:-1])  # without the coarsest, which has no head, and the finest
    for head, weight, maps in zip(heads.values(), weights[1:], coarser, strict=True):
        total = total + weight * segmentation_loss(head(maps), labels_at(labels, maps.shape[2:]), **options)
    return total / sum(weights)


def labels_at(labels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Labels ``(batch, *spatial)`` on a coarser grid of ``size``: that of the nearest pixel."""
    return F.interpolate(labels.unsqueeze(1).float(), size, mode="nearest-exact").squeeze(1).to(labels.dtype)
