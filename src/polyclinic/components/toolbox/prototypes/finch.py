"""FINCH, the parameter-free clustering of Sarfraz et al., *Efficient Parameter-free Clustering Using First Neighbor
Relations*, CVPR 2019, eq. 1, written from the paper.

Two rows are linked if one is the other's first neighbour or if they share one; the connected components are the first
partition. The means of its clusters are clustered again, until one cluster is left.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Partition = Literal["last", "first"]


def finch(rows: Tensor) -> list[Tensor]:
    """All partitions of ``rows`` ``(n, channels)`` by cosine distance, from fine to coarse, each ``(n,)`` of int64.

    The partition with everything in one cluster is left out unless it is the first. Ties go to the lowest index; a row
    of zeros is equally far from all others. One row is one cluster.
    """
    if len(rows) == 0:
        raise ValueError("no rows to cluster")
    rows = rows.detach().cpu().double()
    partition = _first_neighbour_components(rows)
    partitions = [partition]
    while partition.max() > 0:
        coarser = _first_neighbour_components(cluster_means(rows, partition))[partition]
        if coarser.max() == 0:
            break
        partitions.append(coarser)
        partition = coarser
    return partitions


def cluster_means(rows: Tensor, partition: Tensor) -> Tensor:
    """Mean of the rows ``(n, channels)`` of each cluster, ``(clusters, channels)``."""
    onehot = F.one_hot(partition.to(rows.device)).to(rows.dtype)
    return (onehot / onehot.sum(0)).T @ rows


def cluster_by_class(vectors: Tensor, classes: Tensor, partition: Partition = "last") -> tuple[Tensor, Tensor]:
    """FINCH within each class (FedBCS eq. 13): cluster means ``(clusters, channels)`` and classes ``(clusters,)``.

    The ``last`` partition is the coarsest, the ``first`` the finest.
    """
    means, owners = [vectors[:0]], [classes[:0]]
    for label in torch.unique(classes):
        rows = vectors[classes == label]
        means.append(cluster_means(rows, finch(rows)[-1 if partition == "last" else 0]))
        owners.append(label.expand(len(means[-1])))
    return torch.cat(means), torch.cat(owners)


def _first_neighbour_components(rows: Tensor) -> Tensor:
    """Clusters of the graph that links each row with its first neighbour; sharing one links two rows through it."""
    # Here, because the file is imported for the list of components, and most methods have no prototypes.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(rows)
    if count == 1:
        return torch.zeros(1, dtype=torch.long)
    unit = F.normalize(rows, dim=1)
    # Rounded, because a matrix product may give equal rows similarities that differ in the last bit.
    similarity = (unit @ unit.T).round(decimals=10).fill_diagonal_(-torch.inf)
    neighbour = similarity.max(dim=1, keepdim=True).values.eq(similarity).int().argmax(dim=1)
    links = coo_array((torch.ones(count), (torch.arange(count), neighbour)), shape=(count, count))
    return torch.from_numpy(connected_components(links, directed=False)[1]).long()
