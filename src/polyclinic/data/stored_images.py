"""An image set over entries of the cache: nothing is copied, and labels that must not be read are not there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyclinic.data.cache_entry import Entry
from polyclinic.data.federation import Item
from polyclinic.data.foreground import StoredForeground
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.site_intensity import SiteMoments
from polyclinic.data.site_layout import stored_grids, visible_rows
from polyclinic.recipe import DataSettings


def imageset_of(
    items: Sequence[Item], images: Entry | None, labels: Entry | None, settings: DataSettings | None = None
) -> ImageSet:
    """The image set of these items, in their order; ``labels`` is ``None`` where none of them may be read.

    ``settings`` say how the moments of images become their site's intensity, where there are any.
    """
    if images is None:
        return ImageSet([], [], torch.zeros(0, dtype=torch.bool), [])
    grids = stored_grids(images)
    samples, shapes, label_rows, label_shapes = [], [], list[int](), list[tuple[int, ...]]()
    for item, grid, about in zip(items, grids, images.index["items"], strict=True):
        samples += _samples(item, about)
        shapes += [grid.shape] * grid.rows
        visible = {row: len(label_shapes) + number for number, row in enumerate(visible_rows(item, grid))}
        label_rows += [visible.get(row, -1) for row in range(grid.rows)]
        label_shapes += [grid.shape] * len(visible)
    pixels = images.tensors["images"]
    channels = pixels.numel() // sum(map(prod, shapes))
    rows = torch.tensor(label_rows)
    return ImageSet(
        _rows(pixels, [(channels, *shape) for shape in shapes]),
        _rows(torch.zeros(0, dtype=torch.uint8) if labels is None else labels.tensors["labels"], label_shapes),
        rows >= 0,
        samples,
        label_rows=rows,
        foreground=None if labels is None else _foreground(labels),
        ahead=(images.ahead, None if labels is None else labels.ahead),
        moments=_moments(items, images, settings),
    )


def _moments(items: Sequence[Item], images: Entry, settings: DataSettings | None) -> SiteMoments | None:
    stored = [about.get("moments") for about in images.index["items"]]
    if settings is None or None in stored:
        return None
    return SiteMoments({item.name: moments for item, moments in zip(items, stored, strict=True)}, settings)


def _samples(item: Item, about: dict[str, Any]) -> list[Sample]:
    spacing = None if about["spacing"] is None else tuple(about["spacing"])
    return [
        Sample(item.site, item.name, item.case, row if about["sliced"] else None, spacing, about["slice_spacing"])
        for row in range(about["rows"])
    ]


def _rows(block: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor | list[Tensor]:
    """One tensor where all rows have one shape, else a list of views."""
    if len(set(shapes)) == 1:
        return block.view(len(shapes), *shapes[0])
    flat, ends = block.flatten(), [0, *accumulate(map(prod, shapes))]
    return [flat[start:end].view(shape) for start, end, shape in zip(ends, ends[1:], shapes, strict=False)]


def _foreground(labels: Entry) -> StoredForeground:
    found: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    row = slot = 0
    for about in labels.index["items"]:
        for number, classes in enumerate(about["foreground"] or ()):
            found[row + number] = (slot, classes)
            slot += 1
        row += about["rows"]
    return StoredForeground(labels.tensors["foreground"], found)
