"""The prepared images of one site and split, ready for batches and random patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

_LOCATIONS_PER_CLASS = 1024  # foreground voxels remembered for each class of an image, spread evenly


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
            by_class = [(flat == value).nonzero().flatten() for value in torch.unique(flat).tolist() if value > 0]
            self._locations[index] = [voxels[:: -(-len(voxels) // _LOCATIONS_PER_CLASS)].clone() for voxels in by_class]
        return self._locations[index]


def _picked(values: Tensor | list[Tensor], rows: Tensor | None) -> Tensor | list[Tensor]:
    if rows is None:
        return values
    return values[rows] if isinstance(values, Tensor) else [values[row] for row in rows.tolist()]
