"""Where each image and label of a site lies in its cache entries, known from headers before an image is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.cache_entry import Block, Entry, Layout, Target
from polyclinic.data.federation import Federation, Item
from polyclinic.data.foreground import VOXELS_PER_CLASS, foreground_voxels
from polyclinic.data.preprocessing import Prepared
from polyclinic.data.voxel_grid import geometry_of
from polyclinic.recipe import DataSettings

_STORED_FROM = 2**18  # voxels; the foreground of smaller labels is found again as fast as it is read
_LARGEST_POSITION = 2**31 - 1


@dataclass(frozen=True)
class Grid:
    """What an item gives: ``rows`` prepared images of one spatial ``shape``."""

    rows: int
    shape: tuple[int, ...]

    def row_bytes(self, channels: int) -> int:
        """Bytes of one of them with its label."""
        return prod(self.shape) * (4 * channels + 1)


def expected_grids(items: Sequence[Item], federation: Federation, settings: DataSettings) -> list[Grid]:
    """The grid of every item from headers, or from the settings alone where they decide."""
    if settings.size != "auto" and not federation.volumes_as_slices:
        return [Grid(1, tuple(settings.size))] * len(items)
    geometries = [geometry_of(item, federation, settings) for item in items]
    return [Grid(geometry.samples, geometry.sample_shape) for geometry in geometries]


def stored_grids(images: Entry) -> list[Grid]:
    """The same, from an entry of images."""
    return [Grid(about["rows"], tuple(about["shape"])) for about in images.index["items"]]


class ImagesLayout:
    """All images of a site ``(row, channel, *spatial)``, or one behind the other where sizes differ."""

    def __init__(self, grids: Sequence[Grid], channels: int) -> None:
        self.grids, self.channels = grids, channels
        self._voxels = [channels * prod(grid.shape) for grid in grids]
        ends = np.cumsum([0, *(grid.rows * voxels for grid, voxels in zip(grids, self._voxels, strict=True))])
        self._starts = [int(end) for end in ends]
        shapes = {grid.shape for grid in grids}
        rows = sum(grid.rows for grid in grids)
        shape = (rows, channels, *shapes.pop()) if len(shapes) == 1 else (self._starts[-1],)
        self.layout = Layout({"images": Block("F32", shape)})

    def write(self, target: Target, number: int, prepared: Sequence[Prepared]) -> dict[str, Any]:
        """Write the images of an item; gives what the index says of it."""
        grid, place = self.grids[number], self._starts[number]
        for sample in prepared:
            target.write(4 * place, sample.image.float().numpy())
            place += self._voxels[number]
        first = prepared[0]
        return {
            "rows": grid.rows, "shape": grid.shape, "sliced": first.slice_index is not None,
            "spacing": first.spacing, "slice_spacing": first.geometry.slice_spacing,
            **({} if first.moments is None else {"moments": first.moments}),
        }  # fmt: skip


class LabelsLayout:
    """The labels that may be read, one behind the other, and where the foreground of large ones lies."""

    def __init__(self, items: Sequence[Item], grids: Sequence[Grid], classes: int) -> None:
        self.rows = [visible_rows(item, grid) for item, grid in zip(items, grids, strict=True)]
        self._voxels = [prod(grid.shape) for grid in grids]
        self._starts: list[int] = []
        self._slots: list[int | None] = []
        voxels = slots = 0
        for rows, size in zip(self.rows, self._voxels, strict=True):
            self._starts.append(voxels)
            large = _STORED_FROM <= size <= _LARGEST_POSITION
            self._slots.append(slots if large else None)
            voxels, slots = voxels + len(rows) * size, slots + (len(rows) if large else 0)
        shapes = {grid.shape for grid, rows in zip(grids, self.rows, strict=True) if rows}
        total = sum(map(len, self.rows))
        shape = (total, *shapes.pop()) if len(shapes) == 1 else (voxels,)
        self._row_bytes = 4 * (classes - 1) * VOXELS_PER_CLASS
        foreground = Block("I32", (slots, classes - 1, VOXELS_PER_CLASS))
        self.layout = Layout({"foreground": foreground, "labels": Block("U8", shape)})

    def write(self, target: Target, number: int, prepared: Sequence[Prepared]) -> dict[str, Any]:
        """Write the visible labels of an item; gives what the index says of it."""
        slot, found = self._slots[number], []
        for row, index in enumerate(self.rows[number]):
            label = prepared[index].label
            assert label is not None
            place = self.layout.places["labels"] + self._starts[number] + row * self._voxels[number]
            target.write(place, label.numpy())
            if slot is not None:
                found.append(self._write_foreground(target, slot + row, label))
        return {"rows": len(self.rows[number]), "foreground": None if slot is None else found}

    def _write_foreground(self, target: Target, slot: int, label: Tensor) -> list[tuple[int, int]]:
        """Positions of foreground voxels in the row of each class; gives classes and numbers of voxels."""
        by_class = foreground_voxels(label)
        for value, voxels in by_class.items():
            place = slot * self._row_bytes + (value - 1) * 4 * VOXELS_PER_CLASS
            target.write(place, voxels.to(torch.int32).numpy())
        return [(value, len(voxels)) for value, voxels in by_class.items()]


def visible_rows(item: Item, grid: Grid) -> tuple[int, ...]:
    """The rows of an item whose label may be used."""
    if item.label is None:
        return ()
    return tuple(range(grid.rows)) if item.labelled_slices is None else item.labelled_slices


def require_grid(item: Item, grid: Grid, prepared: Sequence[Prepared]) -> None:
    """Raise if an image came out other than its header said: it would be written over its neighbours."""
    shapes = {tuple(sample.image.shape[1:]) for sample in prepared}
    if len(prepared) != grid.rows or shapes != {grid.shape}:
        raise PolyclinicError(
            f"{item.images[0]}: its header promises {grid.rows} of size {list(grid.shape)}, and its voxels are "
            f"{len(prepared)} of {[list(shape) for shape in sorted(shapes)]}; replace the file."
        )
