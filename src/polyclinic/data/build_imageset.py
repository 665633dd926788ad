"""Prepare a site's images into an image set: in memory, or memory-mapped from the cache when they are too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyclinic.core.files import cache_folder
from polyclinic.core.wording import MB
from polyclinic.data.federation import Federation, Item
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.prepared_cache import CacheRecord, cache_key, read_entry, write_entry
from polyclinic.data.preprocessing import prepare
from polyclinic.data.voxel_grid import geometry_of
from polyclinic.recipe import DataSettings


def build_imageset(
    items: Sequence[Item],
    federation: Federation,
    settings: DataSettings,
    cache: Path | None = None,
    always: bool = False,
) -> ImageSet:
    """Prepare images, in memory, or memory-mapped in the ``cache`` folder when they exceed ``memory_limit_mb``.

    ``always`` uses the cache for any size, for processes that start often. An entry that exists is used without reading
    an image. ``cache`` defaults to ``data.cache``, then to polyclinic's cache folder.
    """
    folder = cache or (Path(settings.cache).expanduser() if settings.cache else cache_folder() / "prepared")
    entry = folder / cache_key(items, federation.task, settings)
    if items and not entry.is_dir():
        shapes = _expected_shapes(items, federation, settings)
        if not always and _bytes(shapes, federation) <= settings.memory_limit_mb * MB:
            return _in_memory(shapes, items, federation, settings)
        write_entry(folder, entry.name, _records(items, federation, settings))
    if items:
        with suppress(OSError):  # of a cache that belongs to somebody else
            entry.touch()  # the least recently used make room where the cache is bounded
    return _with_samples(*(read_entry(entry) if items else ([], [], [])))


def prepared_bytes(items: Sequence[Item], federation: Federation, settings: DataSettings) -> tuple[int, int]:
    """Bytes of all prepared images with their labels, and of the largest one, from headers alone."""
    shapes = _expected_shapes(items, federation, settings)
    return _bytes(shapes, federation), max((_bytes([shape], federation) for shape in shapes), default=0)


def is_cached(folder: Path, items: Sequence[Item], federation: Federation, settings: DataSettings) -> bool:
    """Whether a cache folder holds these images, prepared."""
    return (folder / cache_key(items, federation.task, settings)).is_dir()


def _bytes(shapes: Sequence[tuple[int, ...]], federation: Federation) -> int:
    return sum(prod(shape) * (4 * federation.task.channels + 1) for shape in shapes)


def _records(items: Sequence[Item], federation: Federation, settings: DataSettings) -> Iterator[CacheRecord]:
    for item in items:
        for prepared in prepare(item, federation, settings):
            between = prepared.geometry.slice_spacing
            sample = Sample(item.site, item.name, item.case, prepared.slice_index, prepared.spacing, between)
            empty = torch.zeros(prepared.image.shape[1:], dtype=torch.uint8)
            hidden = item.labelled_slices is not None and prepared.slice_index not in item.labelled_slices
            label = None if hidden else prepared.label
            about = {**asdict(sample), "labelled": label is not None}
            yield CacheRecord(prepared.image.contiguous(), (empty if label is None else label).contiguous(), about)


def _expected_shapes(items: Sequence[Item], federation: Federation, settings: DataSettings) -> list[tuple[int, ...]]:
    """The spatial shape of every prepared image, from headers, or from the settings alone where they decide."""
    if settings.size != "auto" and not federation.volumes_as_slices:
        return [settings.size] * len(items)
    grids = [geometry_of(item, federation, settings) for item in items]
    return [grid.sample_shape for grid in grids for _ in range(grid.samples)]


def _in_memory(
    shapes: list[tuple[int, ...]], items: Sequence[Item], federation: Federation, settings: DataSettings
) -> ImageSet:
    """Fill one tensor as images come in: stacking them in the end would hold the site twice."""
    if len(set(shapes)) > 1:
        records = list(_records(items, federation, settings))
        images: Tensor | list[Tensor] = [record.image for record in records]
        labels: Tensor | list[Tensor] = [record.label for record in records]
        return _with_samples(images, labels, [record.about for record in records])
    images = torch.empty(len(shapes), federation.task.channels, *shapes[0])
    labels = torch.empty(len(shapes), *shapes[0], dtype=torch.uint8)
    index = []
    for row, record in enumerate(_records(items, federation, settings)):
        images[row], labels[row] = record.image, record.label
        index.append(record.about)
    return _with_samples(images, labels, index)


def _with_samples(
    images: Tensor | list[Tensor], labels: Tensor | list[Tensor], index: list[dict[str, Any]]
) -> ImageSet:
    labelled = torch.tensor([row.pop("labelled") for row in index], dtype=torch.bool)
    for row in index:  # JSON knows no tuples
        row["spacing"] = None if row["spacing"] is None else tuple(row["spacing"])
    return ImageSet(images, labels, labelled, [Sample(**row) for row in index])
