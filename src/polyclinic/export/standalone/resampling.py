"""Linear interpolation of voxels, one axis after another where that is enough."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_SAME = 1e-4  # of a voxel: what counts as no movement at all


def resampled(voxels: Array, matrix: Array, shape: tuple[int, ...]) -> Array:
    """Values ``(channel, *shape)`` at ``matrix @ index``, linear between voxels, the nearest one outside."""
    rank = len(shape)
    linear = np.where(np.abs(matrix[:rank, :rank]) * max(max(shape), 1) < _SAME, 0.0, matrix[:rank, :rank])
    if ((linear != 0).sum(0) > 1).any() or ((linear != 0).sum(1) > 1).any():
        return _resampled_askew(voxels, matrix, shape)
    # Each axis of the result runs along one axis of the source: one axis after another is enough.
    sources = [int(np.abs(linear[:, axis]).argmax()) for axis in range(rank)]
    voxels = voxels.transpose(0, *(source + 1 for source in sources))
    for axis, (source, size) in enumerate(zip(sources, shape, strict=True)):
        voxels = along(voxels, axis + 1, matrix[source, axis] * np.arange(size) + matrix[source, rank])
    return voxels


def along(voxels: Array, axis: int, places: Array) -> Array:
    """Linear interpolation at places along one axis."""
    places = np.clip(places, 0, voxels.shape[axis] - 1)
    lower = np.minimum(np.floor(places).astype(int), max(voxels.shape[axis] - 2, 0))
    share = (places - lower).reshape([-1 if other == axis else 1 for other in range(voxels.ndim)])
    upper = np.minimum(lower + 1, voxels.shape[axis] - 1)
    result: Array = voxels.take(lower, axis) * (1 - share) + voxels.take(upper, axis) * share
    return result


def _resampled_askew(voxels: Array, matrix: Array, shape: tuple[int, ...]) -> Array:
    """The same where the axes of the result lie askew; one slab at a time, which bounds the memory."""
    rank, slabs = len(shape), []
    for first in range(shape[0]):
        index = np.stack(np.meshgrid([first], *(np.arange(size) for size in shape[1:]), indexing="ij"), -1)
        places = np.clip(index @ matrix[:rank, :rank].T + matrix[:rank, rank], 0, np.array(voxels.shape[1:]) - 1)
        lower = np.floor(places).astype(int)
        share, slab = places - lower, np.zeros((len(voxels), *index.shape[:-1]))
        for corner in product((0, 1), repeat=rank):
            weight = np.prod(np.where(corner, share, 1 - share), axis=-1)
            at = np.minimum(lower + corner, np.array(voxels.shape[1:]) - 1)
            slab += weight * voxels[(slice(None), *np.moveaxis(at, -1, 0))]
        slabs.append(slab)
    return np.concatenate(slabs, axis=1)
