"""Global prototypes as a site receives them, and the losses that align pixels with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.contrast import TINY, inverse_length
from polyclinic.exchange.messages import Tensors

InfoNceForm = Literal["lse", "released"]


@dataclass(frozen=True)
class Prototypes:
    """``vectors`` ``(prototypes, channels)``, the class of each ``(prototypes,)``, and the number of all classes."""

    vectors: Tensor
    classes: Tensor
    count: int

    @property
    def membership(self) -> Tensor:
        """``(prototypes, class)``: 1 where the prototype belongs to the class."""
        return F.one_hot(self.classes, self.count).to(self.vectors.dtype)

    @property
    def present(self) -> Tensor:
        """``(class,)``: whether the class has a prototype."""
        return self.membership.sum(0) > 0

    @property
    def means(self) -> Tensor:
        """Unweighted mean of each class's prototypes ``(class, channels)`` (FedBCS eq. 14); zeros where none is."""
        membership = self.membership
        return (membership / membership.sum(0).clamp_min(1)).T @ self.vectors

    def tensors(self, prefix: str) -> Tensors:
        """As named tensors for a broadcast."""
        return {f"{prefix}": self.vectors, f"{prefix}_classes": self.classes}

    @classmethod
    def received(cls, shared: Mapping[str, Tensor], prefix: str, count: int, device: torch.device) -> Prototypes | None:
        """From a broadcast; ``None`` before there are any (the first round)."""
        if prefix not in shared or not len(shared[prefix]):
            return None
        return cls(shared[prefix].to(device), shared[f"{prefix}_classes"].to(device), count)


def info_nce(
    similarities: Tensor, labels: Tensor, prototypes: Prototypes, tau: float, form: InfoNceForm = "lse"
) -> Tensor:
    """InfoNCE of anchors against prototypes ``(n,)``, FedBCS eq. 15: ``LSE_all(s / tau) - LSE_own(s / tau)``.

    ``similarities`` are cosines ``(n, prototypes)``, ``labels`` ``(n,)`` of int64. An anchor whose class has no
    prototype gets 0. ``released`` clamps logits at 20 and exponentials at 1e6 as the authors' code does; for a small
    ``tau`` that is a constant without gradient.
    """
    logits = similarities / tau
    of_class = (prototypes.classes[None] == labels[:, None]) | ~prototypes.present[labels][:, None]
    if form == "released":
        weights = logits.clamp(max=20).exp().clamp(max=1e6)
        # The small number is the authors': at a low temperature negative cosines underflow to zero.
        return (weights.sum(1) + 1e-9).log() - ((weights * of_class).sum(1) + 1e-9).log()
    return logits.logsumexp(1) - logits.masked_fill(~of_class, -torch.inf).logsumexp(1)


def cosines(dots: Tensor, squares: Tensor, prototypes: Prototypes) -> Tensor:
    """Cosines ``(n, prototypes)`` from inner products ``(n, prototypes)`` and squared norms of the anchors ``(n,)``.

    Those of an anchor of zeros are 0, without gradient.
    """
    lengths = prototypes.vectors.square().sum(1).clamp_min(TINY).sqrt()
    return dots * inverse_length(squares)[:, None] / lengths


def mean_distances(dots: Tensor, squares: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """``||e_i - qbar^{y_i}||^2`` ``(n,)`` (FedBCS eq. 16, one stream) from inner products and squared norms alone."""
    membership = prototypes.membership
    towards_means = dots @ (membership / membership.sum(0).clamp_min(1))
    lengths = prototypes.means.square().sum(1)
    return squares - 2 * towards_means.gather(1, labels[:, None])[:, 0] + lengths[labels]


def masked_mean(values: Tensor, used: Tensor, weight: float = 1.0) -> Tensor:
    """``weight`` times the mean of ``values`` ``(n,)`` where the mask ``used`` ``(n,)`` is true; 0 if it never is."""
    mask = used.to(values.dtype)
    # In this order, so that the mean is rounded once.
    return weight * (values * mask).sum() / mask.sum().clamp_min(1)


def mean_over_classes(values: Tensor, labels: Tensor, used: Tensor, count: int) -> Tensor:
    """Mean over the classes that have used anchors of the mean over their anchors; 0 if there are none.

    ``values``, ``labels`` and the mask ``used`` are ``(n,)``.
    """
    onehot = F.one_hot(labels, count).to(values.dtype) * used.to(values.dtype)[:, None]
    anchors = onehot.sum(0)
    each = onehot.T @ torch.where(used, values, 0.0) / anchors.clamp_min(1)
    return each.sum() / (anchors > 0).sum().clamp_min(1)
