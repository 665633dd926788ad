"""Where the foreground of a label lies: a few voxels of each class, for patches that are centred on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

VOXELS_PER_CLASS = 1024  # remembered for each class of an image, spread evenly


def foreground_voxels(label: Tensor) -> dict[int, Tensor]:
    """Flat positions ``(voxel,)`` of some voxels of each foreground class of a label ``(*spatial)``."""
    flat = label.flatten()
    by_class = {value: (flat == value).nonzero().flatten() for value in torch.unique(flat).tolist() if value > 0}
    return {value: voxels[:: -(-len(voxels) // VOXELS_PER_CLASS)].clone() for value, voxels in by_class.items()}


class StoredForeground:
    """The same as it was stored: ``voxels (slot, class - 1, VOXELS_PER_CLASS)``, and by row of a label its slot and its
    classes with their numbers of voxels."""

    def __init__(self, voxels: Tensor, rows: Mapping[int, tuple[int, Sequence[tuple[int, int]]]]) -> None:
        self._voxels, self._rows = voxels, rows

    def of(self, row: int) -> list[Tensor] | None:
        """Positions of voxels of each foreground class of a label, or ``None`` if it was too small to store them."""
        if row not in self._rows:
            return None
        slot, classes = self._rows[row]
        return [self._voxels[slot, value - 1, :count] for value, count in classes]
