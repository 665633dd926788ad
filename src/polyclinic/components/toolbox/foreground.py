"""Foreground as losses for one structure see it: its probability and its mask, for each class but the background."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def foreground(logits: Tensor, labels: Tensor, over: Literal["image", "batch"] = "image") -> tuple[Tensor, Tensor]:
    """Probabilities and masks of the foreground classes, both ``(batch, class - 1, *spatial)`` in float32.

    With ``over = "batch"`` the batch is one image: both are ``(1, class - 1, all pixels)``. ``logits`` is
    ``(batch, class, *spatial)``, ``labels`` ``(batch, *spatial)``. A paper's sigmoid for one structure is the softmax
    of two classes: with logits ``a`` and ``b`` the foreground has ``sigmoid(b - a)``.
    """
    probabilities = logits.float().softmax(1)[:, 1:]
    numbers = torch.arange(1, logits.shape[1], device=labels.device).view(-1, *[1] * (labels.dim() - 1))
    masks = (labels[:, None] == numbers).float()
    if over == "batch":
        return probabilities.transpose(0, 1).flatten(1)[None], masks.transpose(0, 1).flatten(1)[None]
    return probabilities, masks


def mean_over_foreground(losses: Tensor, truth: Tensor, absent_classes: Literal["count", "ignore"]) -> Tensor:
    """The mean of ``losses`` ``(batch, class - 1)``; ``truth`` of the same shape is the size of each mask.

    ``ignore`` leaves out the classes that no mask of the batch holds; where that are all of them, the mean is 0.
    """
    if absent_classes == "count":
        return losses.mean()
    present = (truth.sum(0) > 0).to(losses.dtype)
    return (losses.mean(0) * present).sum() / present.sum().clamp_min(1)
