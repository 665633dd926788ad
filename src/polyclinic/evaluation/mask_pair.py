"""The predicted and the true mask of one class of one case, and what metrics need of them, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MaskPair:
    """Two masks that are not empty, on one grid. Counts are there from the start, the rest is made when asked for.

    ``predicted_labels`` and ``true_labels`` are label maps ``(*spatial)``, of which ``members`` are the classes of the
    mask; ``spacing`` is the distance of neighbouring voxels along each axis, in the units of distances.
    """

    predicted_labels: NDArray[Any]
    true_labels: NDArray[Any]
    members: Sequence[int]
    hits: int
    """Voxels of both masks."""
    predicted_count: int
    true_count: int
    spacing: NDArray[np.float64]

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """The predicted mask ``(*spatial)``."""
        return _mask(self.predicted_labels, self.members)

    @cached_property
    def true(self) -> NDArray[np.bool_]:
        """The true mask ``(*spatial)``."""
        return _mask(self.true_labels, self.members)

    @cached_property
    def surface_distances(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """From every surface voxel of the prediction to the nearest one of the truth, and the other way round.

        MONAI's surface distances agree, but each of its metrics finds the surfaces anew, and even one of them takes 1.3
        to 4 times as long as all of this.
        """
        predicted, true = (surface(mask) for mask in _crop(self.predicted, self.true))
        return _nearest(predicted, true, self.spacing), _nearest(true, predicted, self.spacing)


def _mask(labels: NDArray[Any], members: Sequence[int]) -> NDArray[np.bool_]:
    """Where a label map is one of a few classes; ``np.isin`` takes several times as long."""
    mask: NDArray[np.bool_] = labels == members[0]
    for member in members[1:]:
        mask |= labels == member
    return mask


def surface(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The voxels of a mask with a face neighbour outside of it; what lies beyond the image is outside.

    The same as ``mask & ~scipy.ndimage.binary_erosion(mask)``, seven times faster.
    """
    padded, interior = np.pad(mask, 1), mask.copy()
    for axis in range(mask.ndim):
        for side in (slice(0, -2), slice(2, None)):
            interior &= padded[tuple(side if other == axis else slice(1, -1) for other in range(mask.ndim))]
    return mask & ~interior


def _crop(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Cut both masks to the bounding box of their union, beyond which there is only background anyway."""
    union = first | second
    box = []
    for axis in range(union.ndim):
        filled = np.flatnonzero(union.any(axis=tuple(other for other in range(union.ndim) if other != axis)))
        box.append(slice(filled[0], filled[-1] + 1))
    return first[tuple(box)], second[tuple(box)]


def _nearest(source: NDArray[np.bool_], target: NDArray[np.bool_], spacing: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances from every voxel of ``source`` to the nearest one of ``target``."""
    from scipy.spatial import cKDTree

    # Voxels of both surfaces have distance 0, and in a good segmentation they are most of all.
    apart = np.argwhere(source & ~target) * spacing
    distances = np.zeros(np.count_nonzero(source))
    if len(apart):
        distances[: len(apart)] = cKDTree(np.argwhere(target) * spacing, leafsize=32).query(apart)[0]
    return distances
