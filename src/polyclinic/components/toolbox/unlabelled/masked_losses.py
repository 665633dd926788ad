"""Entropy, divergence and masked losses of class probabilities ``(batch, class, *spatial)``, in float32 or better."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.segmentation_loss import masked_dice_loss

EPS = 1e-8


def entropy(probabilities: Tensor) -> Tensor:
    """``-sum_c p_c log(p_c + 1e-8)``, ``(batch, *spatial)``, natural logarithm."""
    values = probabilities.float()
    return -(values * (values + EPS).log()).sum(1)


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Probabilities ``(batch, class, *spatial)`` to the power of ``1 / temperature``, divided by their sum."""
    logs = probabilities.clamp_min(torch.finfo(torch.float32).tiny).log() / temperature
    return logs.softmax(1)


def divergence(first: Tensor, second: Tensor) -> float:
    """``KL(first || second)`` summed over everything, in double precision; clipped to [1e-8, 1 - 1e-8] before."""
    if first.device.type == "mps":  # which has no double precision
        first, second = first.cpu(), second.cpu()
    p, q = (values.double().clamp(EPS, 1 - EPS) for values in (first, second))
    return float((p * (p.log() - q.log())).sum())


def quantile(values: Tensor, level: float, most: int = 2**24) -> Tensor:
    """The ``level`` quantile of all values; of evenly spread ones where there are more than torch can sort."""
    flat = values.flatten()
    return torch.quantile(flat[:: -(-len(flat) // most)], level)


def class_quantiles(values: Tensor, labels: Tensor, classes: int, level: float, most: int = 2**24) -> Tensor:
    """The ``level`` quantile of the values of each class's pixels, ``(classes,)``; NaN for a class without any."""
    flat, index = values.flatten(), labels.flatten()
    stride = -(-len(flat) * classes // most)
    flat, index = flat[::stride], index[::stride]
    own = index == torch.arange(classes, device=index.device).unsqueeze(1)
    return torch.nanquantile(torch.where(own, flat, torch.nan), level, dim=1)


def masked_loss(logits: Tensor, labels: Tensor, mask: Tensor, dice: bool = True) -> Tensor:
    """Cross-entropy (and soft Dice) where ``mask`` ``(batch, *spatial)`` is 1; the mean is over all pixels.

    ``labels`` ``(batch, *spatial)`` are integers. With an empty mask the value and the gradient are 0.
    """
    log_probabilities, index = F.log_softmax(logits.float(), 1), labels.unsqueeze(1)
    weights = mask.unsqueeze(1).float()
    loss = -(log_probabilities.gather(1, index) * weights).mean()
    if dice:
        onehot = torch.zeros_like(log_probabilities).scatter_(1, index, 1.0)
        loss = loss + masked_dice_loss(log_probabilities.exp(), onehot, weights)
    return loss
