"""Nearest-neighbour resampling between the grids of a feature pyramid, by index, for any pair of sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, ...]


@dataclass(frozen=True)
class Lift:
    """Takes maps ``(batch, channel, *source)`` to a target grid; ``indices`` has one tuple of positions an axis."""

    source: Size
    indices: tuple[tuple[int, ...], ...]

    @classmethod
    def between(cls, source: Size, target: Size) -> Lift:
        """Position ``i`` shows position ``floor(i * source / target)``: PyTorch's nearest without its rounding."""
        axes = zip(source, target, strict=True)
        return cls(tuple(source), tuple(tuple(i * s // t for i in range(t)) for s, t in axes))

    @property
    def target(self) -> Size:
        """Size of the target grid."""
        return tuple(len(axis) for axis in self.indices)

    def then(self, other: Lift) -> Lift:
        """This, then another."""
        pairs = zip(self.indices, other.indices, strict=True)
        return Lift(self.source, tuple(tuple(first[i] for i in second) for first, second in pairs))

    def __call__(self, maps: Tensor) -> Tensor:
        """``(batch, channel, *source)`` to ``(batch, channel, *target)``."""
        for axis, (size, index) in enumerate(zip(self.source, self.indices, strict=True), start=2):
            maps = _take(maps, axis, size, index)
        return maps

    def gather_back(self, maps: Tensor) -> Tensor:
        """The transpose: ``(batch, channel, *target)`` summed where each position came from."""
        for axis, (size, index) in enumerate(zip(self.source, self.indices, strict=True), start=2):
            if index != tuple(range(size)):
                shape = (*maps.shape[:axis], size, *maps.shape[axis + 1 :])
                positions = torch.tensor(index, device=maps.device)
                maps = maps.new_zeros(shape).index_add_(axis, positions, maps)
        return maps


def _take(maps: Tensor, axis: int, size: int, index: tuple[int, ...]) -> Tensor:
    """Slices and repeats where they do, because the gradient of an index is slow on CPUs."""
    count = len(index)
    if index == tuple(range(size)):
        return maps
    if count < size and index == tuple(range(0, size, size // count))[:count]:
        step = size // count
        return maps[(slice(None),) * axis + (slice(0, step * count, step),)]
    if count % size == 0 and index == tuple(i * size // count for i in range(count)):
        return maps.repeat_interleave(count // size, dim=axis)
    return maps.index_select(axis, torch.tensor(index, device=maps.device))


def class_counts(labels: Tensor, target: Size, classes: int) -> Tensor:
    """Pixels of each class in every cell of a coarser grid: ``(batch, *spatial)`` to ``(batch, class, *target)``.

    Pixel ``i`` lies in cell ``floor(i * target / size)``.
    """
    cells = Lift.between(target, tuple(labels.shape[1:]))
    return cells.gather_back(F.one_hot(labels.long(), classes).movedim(-1, 1))


def resize_labels(labels: Tensor, target: Size) -> Tensor:
    """Labels ``(batch, *spatial)`` at another size, nearest."""
    return Lift.between(tuple(labels.shape[1:]), target)(labels[:, None])[:, 0]
