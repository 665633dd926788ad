"""What contrastive terms share: directions without trouble at zero, InfoNCE, and projection heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TINY = 1e-12


def inverse_length(squares: Tensor) -> Tensor:
    """``1 / sqrt(squares)``; 0 without a gradient where a vector has no length, and therefore no direction.

    A small divisor instead would give such a vector an enormous slope.
    """
    return torch.where(squares > TINY, squares.clamp_min(TINY).rsqrt(), 0.0)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows ``(..., width)`` of length 1; rows of zeros stay."""
    return rows * inverse_length(rows.square().sum(-1, keepdim=True))


def info_nce(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """``mean_i -log( exp(cos(a_i, c_i) / T) / sum_j exp(cos(a_i, c_j) / T) )`` of rows ``(..., n, width)``.

    The positive of a row is the row of the same number; all others of its group are negatives. It is a log-sum-exp, so
    low temperatures neither overflow nor lose their gradient.
    """
    logits = unit_rows(anchors) @ unit_rows(candidates).mT / temperature
    return (logits.logsumexp(-1) - logits.diagonal(dim1=-2, dim2=-1)).mean()


def projection_head(width: int, projected: int) -> nn.Sequential:
    """Two linear layers, ``width`` to ``width`` to ``projected``, as on the representations of SimCLR and MOON."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projected))
