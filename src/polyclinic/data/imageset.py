"""The prepared images of one site and split, ready for batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyclinic.core.files import cache_folder
from polyclinic.data.cache import Record, cache_key, read_entry, write_entry
from polyclinic.data.federation import Federation, Item
from polyclinic.data.grids import geometry_of
from polyclinic.data.preprocessing import prepare
from polyclinic.recipe import DataSettings

_LOCATIONS = 1024  # foreground voxels remembered for each class of an image, spread evenly


@dataclass(frozen=True)
class Sample:
    """Where a prepared image comes from. ``spacing`` and ``slice_spacing`` are in millimetres, or None."""

    site: str
    name: str
    case: str
    slice_index: int | None
    spacing: tuple[float, ...] | None
    slice_spacing: float | None


class ImageSet:
    """Prepared images, labels and where they come from; index ``i`` means the same in all of them.

    ``images`` is ``(count, channel, *spatial)`` in float32 and ``labels`` ``(count, *spatial)`` in uint8 when the sizes
    agree, else lists. Unlabelled images have a label of zeros; ``labelled`` ``(count,)`` tells them apart. The tensors
    may be mapped from read-only files: never write to them.
    """

    def __init__(
        self,
        images: Tensor | list[Tensor],
        labels: Tensor | list[Tensor],
        labelled: Tensor,
        samples: Sequence[Sample],
        rows: Tensor | None = None,
    ) -> None:
        self._images, self._labels, self._rows = images, labels, rows
        self.labelled = labelled
        self.samples = list(samples)
        self._locations: dict[int, list[Tensor]] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One image ``(channel, *spatial)`` and its label ``(*spatial)`` in uint8."""
        row = index if self._rows is None else int(self._rows[index])
        return self._images[row], self._labels[row]

    @property
    def uniform(self) -> bool:
        """Whether all images have one size, so that any of them make a batch."""
        return isinstance(self._images, Tensor)

    @property
    def images(self) -> Tensor | list[Tensor]:
        """All images; of a subset, a copy."""
        return _picked(self._images, self._rows)

    @property
    def labels(self) -> Tensor | list[Tensor]:
        """All labels; of a subset, a copy."""
        return _picked(self._labels, self._rows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(batch, channel, *spatial)`` and labels ``(batch, *spatial)`` in int64, all of one size."""
        rows = indices if self._rows is None else self._rows[indices]
        if isinstance(self._images, Tensor) and isinstance(self._labels, Tensor):
            return self._images[rows], self._labels[rows].long()
        chosen = rows.tolist()
        return torch.stack([self._images[row] for row in chosen]), torch.stack(
            [self._labels[row] for row in chosen]
        ).long()

    def patches(
        self, indices: Tensor, size: Sequence[int], generator: torch.Generator, labelled: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Random crops ``(batch, channel, *size)`` and their labels ``(batch, *size)`` in int64.

        About half of the crops are centred on foreground (a class at random, then a voxel of it); none with
        ``labelled = False``, which looks at no label. Images smaller than the crop are padded with zeros.
        """
        crops = [self._crop(int(index), size, generator, labelled) for index in indices]
        return torch.stack([image for image, _ in crops]), torch.stack([label for _, label in crops]).long()

    def subset(self, mask: Tensor) -> ImageSet:
        """The images where ``mask`` ``(count,)`` is true, without copying any."""
        chosen = mask.nonzero().flatten()
        rows = chosen if self._rows is None else self._rows[chosen]
        return ImageSet(
            self._images, self._labels, self.labelled[chosen], [self.samples[i] for i in chosen.tolist()], rows
        )

    def _crop(
        self, index: int, size: Sequence[int], generator: torch.Generator, labelled: bool
    ) -> tuple[Tensor, Tensor]:
        image, label = self[index]
        shape = label.shape
        draws = torch.rand(len(shape) + 3, generator=generator).tolist()
        starts = [int(draw * (max(n - s, 0) + 1)) for draw, n, s in zip(draws[3:], shape, size, strict=True)]
        if labelled and draws[0] < 0.5 and (classes := self._foreground(index)):
            voxels = classes[int(draws[1] * len(classes))]
            centre = torch.unravel_index(voxels[int(draws[2] * len(voxels))], shape)
            starts = [min(max(int(c) - s // 2, 0), max(n - s, 0)) for c, n, s in zip(centre, shape, size, strict=True)]
        box = tuple(slice(start, start + s) for start, s in zip(starts, size, strict=True))
        image, label = image[(slice(None), *box)], label[box]
        missing = [(0, s - n) for n, s in zip(label.shape, size, strict=True)]
        if any(after for _, after in missing):
            margins = [margin for axis in reversed(missing) for margin in axis]
            image, label = pad(image, margins), pad(label, margins)
        return image, label

    def _foreground(self, index: int) -> list[Tensor]:
        """Flat positions of some voxels of each foreground class that an image has."""
        if index not in self._locations:
            flat = self[index][1].flatten()
            found = [(flat == value).nonzero().flatten() for value in torch.unique(flat).tolist() if value > 0]
            self._locations[index] = [voxels[:: -(-len(voxels) // _LOCATIONS)].clone() for voxels in found]
        return self._locations[index]


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
        count = sum(_count(shape) * (4 * federation.task.channels + 1) for shape in shapes)
        if not always and count <= settings.memory_limit_mb * 2**20:
            return _in_memory(shapes, items, federation, settings)
        write_entry(folder, entry.name, _records(items, federation, settings))
    return _described(*(read_entry(entry) if items else ([], [], [])))


def _records(items: Sequence[Item], federation: Federation, settings: DataSettings) -> Iterator[Record]:
    for item in items:
        for prepared in prepare(item, federation, settings):
            between = prepared.geometry.slice_spacing
            sample = Sample(item.site, item.name, item.case, prepared.slice_index, prepared.spacing, between)
            empty = torch.zeros(prepared.image.shape[1:], dtype=torch.uint8)
            hidden = item.labelled_slices is not None and prepared.slice_index not in item.labelled_slices
            label = None if hidden else prepared.label
            about = {**asdict(sample), "labelled": label is not None}
            yield Record(prepared.image.contiguous(), (empty if label is None else label).contiguous(), about)


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
        return _described(images, labels, [record.about for record in records])
    images = torch.empty(len(shapes), federation.task.channels, *shapes[0])
    labels = torch.empty(len(shapes), *shapes[0], dtype=torch.uint8)
    index = []
    for row, record in enumerate(_records(items, federation, settings)):
        images[row], labels[row] = record.image, record.label
        index.append(record.about)
    return _described(images, labels, index)


def _described(images: Tensor | list[Tensor], labels: Tensor | list[Tensor], index: list[dict[str, Any]]) -> ImageSet:
    labelled = torch.tensor([row.pop("labelled") for row in index], dtype=torch.bool)
    for row in index:  # JSON knows no tuples
        row["spacing"] = None if row["spacing"] is None else tuple(row["spacing"])
    return ImageSet(images, labels, labelled, [Sample(**row) for row in index])


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _picked(values: Tensor | list[Tensor], rows: Tensor | None) -> Tensor | list[Tensor]:
    if rows is None:
        return values
    return values[rows] if isinstance(values, Tensor) else [values[row] for row in rows.tolist()]
