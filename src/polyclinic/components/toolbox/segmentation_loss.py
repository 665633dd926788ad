"""The supervised losses: cross-entropy and soft Dice."""

from __future__ import annotations

from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.recipe import PolicySettings, TrainingSettings

LossKind = Literal["dice-ce", "dice-ce-mean", "ce", "dice"]
AbsentClasses = Literal["count", "ignore"]
DiceClasses = Literal["all", "foreground"]
DiceOver = Literal["image", "batch"]

SMOOTH = (
    1e-5  # MONAI's default, above and below the fraction: a class that is neither predicted nor there costs nothing
)


class LossOptions(TypedDict):
    """What a recipe says of the supervised loss, as arguments of the functions below."""

    kind: LossKind
    absent_classes: AbsentClasses
    dice_classes: DiceClasses
    dice_over: DiceOver


def loss_options(training: TrainingSettings, policies: PolicySettings) -> LossOptions:
    """The arguments that a recipe gives."""
    return {
        "kind": training.loss,
        "absent_classes": policies.absent_classes,
        "dice_classes": training.dice_classes,
        "dice_over": training.dice_over,
    }


def segmentation_loss(
    logits: Tensor,
    labels: Tensor,
    kind: LossKind = "dice-ce",
    absent_classes: AbsentClasses = "count",
    dice_classes: DiceClasses = "all",
    dice_over: DiceOver = "image",
) -> Tensor:
    """The loss of ``logits`` ``(batch, class, *spatial)`` against integer ``labels`` ``(batch, *spatial)``, in float32.

    ``dice-ce`` equals MONAI's ``DiceCELoss(to_onehot_y=True, softmax=True)``, background included, and
    ``dice-ce-mean`` is half of it. ``dice_classes = "foreground"`` is its ``include_background=False``, and
    ``dice_over = "batch"`` its ``batch=True``: one Dice of a class over all pixels of the batch. ``absent_classes =
    "ignore"`` leaves out of the Dice mean the classes that no label of the batch holds, so that a batch without any has
    a Dice loss of 0; ``"count"`` lets their false positives count.

    >>> logits = torch.tensor([[[4.0, -4.0]], [[-4.0, 4.0]]]).movedim(1, 0)
    >>> round(segmentation_loss(logits, torch.tensor([[0, 1]])).item(), 4)
    0.0007
    """
    # MONAI computes one softmax for Dice and another for cross-entropy; sharing it saves about a sixth of the time.
    log_probabilities = F.log_softmax(logits.float(), dim=1)
    index = labels.unsqueeze(1)
    loss = torch.zeros((), device=logits.device)
    if kind != "dice":
        # Unlike nll_loss, gather has a deterministic gradient on GPUs.
        loss = loss - log_probabilities.gather(1, index).mean()
    if kind != "ce":
        probabilities = log_probabilities.exp()
        onehot = torch.zeros_like(probabilities).scatter_(1, index, 1.0)
        loss = loss + _mean_dice_loss(probabilities, onehot, absent_classes, dice_classes, dice_over)
    return loss / 2 if kind == "dice-ce-mean" else loss


def soft_label_loss(
    logits: Tensor,
    shares: Tensor,
    kind: LossKind = "dice-ce",
    absent_classes: AbsentClasses = "count",
    dice_classes: DiceClasses = "all",
    dice_over: DiceOver = "image",
) -> Tensor:
    """The same loss against shares of the classes, ``(batch or 1, class, *spatial)``, which sum to 1 in every pixel."""
    log_probabilities, loss = F.log_softmax(logits.float(), dim=1), torch.zeros((), device=logits.device)
    if kind != "dice":
        loss = loss - (shares * log_probabilities).sum(1).mean()
    if kind != "ce":
        shares = shares.expand_as(logits)
        loss = loss + _mean_dice_loss(log_probabilities.exp(), shares, absent_classes, dice_classes, dice_over)
    return loss / 2 if kind == "dice-ce-mean" else loss


def masked_dice_loss(probabilities: Tensor, onehot: Tensor, mask: Tensor) -> Tensor:
    """Soft Dice loss of ``(batch, class, *spatial)`` where ``mask`` ``(batch, 1 or class, *spatial)`` is not 0.

    It is the mean over the batch and all classes, in float32. A sample or class whose mask is 0 everywhere counts
    as 0 in that mean and has no gradient.
    """
    weights = mask.float()
    return _mean_dice_loss(probabilities.float() * weights, onehot.float() * weights, "count")


def _mean_dice_loss(
    probabilities: Tensor,
    onehot: Tensor,
    absent_classes: AbsentClasses,
    dice_classes: DiceClasses = "all",
    dice_over: DiceOver = "image",
) -> Tensor:
    if dice_classes == "foreground":
        probabilities, onehot = probabilities[:, 1:], onehot[:, 1:]
    spatial = tuple(range(2, probabilities.ndim))
    predicted, truth = probabilities.sum(spatial), onehot.sum(spatial)
    overlap = (probabilities * onehot).sum(spatial)
    if dice_over == "batch":
        predicted, truth, overlap = (counts.sum(0, keepdim=True) for counts in (predicted, truth, overlap))
    losses = 1 - (2 * overlap + SMOOTH) / (predicted + truth + SMOOTH)
    if absent_classes == "count":
        return losses.mean()
    present = (truth.sum(0) > 0).float()
    return (losses.mean(0) * present).sum() / present.sum().clamp_min(1)
