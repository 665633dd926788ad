"""Means of clusters that all rest on enough cases, where a site's policy asks for more than one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.prototypes.finch import cluster_means


def means_of_enough_cases(rows: Tensor, clusters: Tensor, cases: Tensor, minimum: int) -> Tensor:
    """Means ``(clusters, channels)`` of rows ``(n, channels)``, each over at least ``minimum`` different cases.

    ``clusters`` and ``cases`` are ``(n,)``. The cluster with the fewest cases joins the one whose mean is nearest by
    cosine, until all have enough; rows of too few cases altogether give no mean.
    """
    while len(rows):
        clusters = torch.unique(clusters, return_inverse=True)[1]
        means = cluster_means(rows, clusters)
        counts = [len(set(cases[clusters == number].tolist())) for number in range(len(means))]
        fewest = counts.index(min(counts))
        if counts[fewest] >= minimum:
            return means
        if len(means) == 1:
            break
        similarity = F.normalize(means, dim=1) @ F.normalize(means[fewest], dim=0)
        similarity[fewest] = -torch.inf
        clusters = torch.where(clusters == fewest, similarity.argmax(), clusters)
    return rows[:0]
