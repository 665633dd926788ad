"""Features of several sites on a plane (PCA), and how much of their variance lies between the sites."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ROUNDING = 1e-6  # of features in float32


@dataclass(frozen=True)
class Points:
    """Features ``(n, channels)`` in float64, the site of each, and its class where there is one."""

    vectors: Tensor
    sites: list[str]
    classes: list[str | None]


def joint_plane(before: Tensor, after: Tensor, same_units: bool) -> tuple[Tensor, Tensor, list[float]]:
    """The first two principal axes of two clouds ``(n, channels)`` together: ``(n, 2)`` each, and their shares.

    Each cloud is centred, so that a common shift does not count. Clouds in the ``same_units`` are then divided by one
    number; else each is brought to a total variance of 1. The share of an axis is that of the variance of both clouds.
    """
    first, second = (cloud - cloud.mean(0) for cloud in (before, after))
    sizes = [total_variance(cloud) ** 0.5 for cloud in (before, after)]
    scales = [max(sizes)] * 2 if same_units else sizes
    clouds = [cloud / (scale or 1.0) for cloud, scale in zip((first, second), scales, strict=True)]
    _, lengths, axes = torch.linalg.svd(torch.cat(clouds), full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()  # else the signs are any
    squares = lengths.square()
    total = float(squares.sum())
    shares = [float(one) / total if total else 0.0 for one in squares[:2]]
    lacking = 2 - len(axes)  # of features with a single number
    first, second = (F.pad(cloud @ axes.T, (0, lacking)) for cloud in clouds)
    return first, second, shares + [0.0] * lacking


def total_variance(cloud: Tensor) -> float:
    """The mean squared distance from the mean; 0 where it is rounding."""
    variance = float((cloud - cloud.mean(0)).square().sum(1).mean())
    return variance if variance > (_ROUNDING * float(cloud.abs().max())) ** 2 else 0.0


def between_sites(points: Points) -> float | None:
    """The share of the variance that lies between sites, within each class: 0 where sites cannot be told apart.

    ``1 - (within / (n - groups)) / (total / (n - classes))`` with ``within = sum |x - m_cs|^2`` and ``total = sum |x -
    m_c|^2`` over classes c and sites s, the pairs of which are the groups. It is an adjusted R squared: the plain
    share of few images is large by chance alone. ``None`` if there is no variance, or no group of two.
    """
    cloud = points.vectors
    total, groups = _spread_within(cloud, points.classes)
    within, pairs = _spread_within(cloud, list(zip(points.classes, points.sites, strict=True)))
    if len(set(points.sites)) < 2 or len(cloud) <= pairs or not total_variance(cloud):
        return None
    return max(0.0, 1 - (within / (len(cloud) - pairs)) / (total / (len(cloud) - groups)))


def _spread_within(cloud: Tensor, owners: Sequence[Hashable]) -> tuple[float, int]:
    """The sum of squared distances to the mean of each group, and the number of groups."""
    names = dict.fromkeys(owners)
    groups = [cloud[torch.tensor([owner == name for owner in owners])] for name in names]
    return sum(float((group - group.mean(0)).square().sum()) for group in groups), len(names)
