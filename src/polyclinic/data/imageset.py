"""The prepared images of one site and split, ready for batches and random patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polyclinic.data.foreground import StoredForeground, foreground_voxels
from polyclinic.data.patch_boxes import padded, random_box
from polyclinic.data.read_ahead import ReadAhead
from polyclinic.data.site_intensity import SiteIntensity, SiteMoments, standardised

_NOTHING = torch.zeros((), dtype=torch.uint8)


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
    agree, else lists. Unlabelled images have a label of zeros; ``labelled`` ``(count,)`` tells them apart. With
    ``label_rows`` ``(count,)`` ``labels`` holds only some: the place of each image's label in it, or -1 for none.
    ``rows`` chooses a subset. The tensors may be mapped from read-only files, which ``ahead`` reads before images and
    labels are used: never write to them. With ``moments`` images are to be scaled by numbers of their site, which
    ``by_site`` settles; ``scale`` are mean and deviation of each image and channel ``(images, channels)``.
    """

    def __init__(
        self,
        images: Tensor | list[Tensor],
        labels: Tensor | list[Tensor],
        labelled: Tensor,
        samples: Sequence[Sample],
        rows: Tensor | None = None,
        *,
        label_rows: Tensor | None = None,
        foreground: StoredForeground | None = None,
        ahead: tuple[ReadAhead | None, ReadAhead | None] = (None, None),
        moments: SiteMoments | None = None,
        scale: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._images, self._labels, self._rows = images, labels, rows
        self._label_rows = torch.arange(len(images)) if label_rows is None else label_rows
        self._complete = bool((self._label_rows >= 0).all())
        self._stored, self._ahead = foreground, ahead
        self.moments, self._scale = moments, scale
        self.labelled = labelled
        self.samples = list(samples)
        self._found: dict[int, list[Tensor]] = {}
        self._awaited: set[int] = set()  # images that were asked for and not yet taken

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One image ``(channel, *spatial)`` and its label ``(*spatial)`` in uint8."""
        image, label = self._views(index)
        if self.moments is None:
            return image, label
        return self._scaled(image[None], torch.tensor([self._row(index)]))[0], label

    @property
    def uniform(self) -> bool:
        """Whether all images have one size, so that any of them make a batch."""
        return isinstance(self._images, Tensor)

    @property
    def images(self) -> Tensor | list[Tensor]:
        """All images; of a subset, a copy."""
        if not isinstance(self._images, Tensor):
            return [self[index][0] for index in range(len(self))]
        rows = slice(None) if self._rows is None else self._rows
        return self._scaled(self._images[rows], rows)

    @property
    def labels(self) -> Tensor | list[Tensor]:
        """All labels; a copy."""
        labels = [self[index][1] for index in range(len(self))]
        return torch.stack(labels) if self.uniform else labels

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(batch, channel, *spatial)`` and labels ``(batch, *spatial)`` in int64, all of one size."""
        if self._ahead != (None, None):
            chosen = indices.tolist()
            self.will_need(torch.tensor([index for index in chosen if index not in self._awaited], dtype=torch.long))
            self._awaited.difference_update(chosen)
        rows = indices if self._rows is None else self._rows[indices]
        if isinstance(self._images, Tensor):
            return self._scaled(self._images[rows], rows), self._labels_of(rows, self._images.shape[2:])
        pairs = [self[index] for index in indices.tolist()]
        return torch.stack([image for image, _ in pairs]), torch.stack([label for _, label in pairs]).long()

    def will_need(
        self,
        indices: Tensor,
        size: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        foreground: float = 0.5,
    ) -> None:
        """Have these images read from the disk soon, or with ``size`` what ``patches`` of it would cut out.

        Does not wait. ``generator`` must be in the state that ``patches`` will find it in, and is used up.
        """
        if self._ahead == (None, None) or (size is not None and generator is None):
            return
        for index in indices.tolist():
            image, label = self._views(index)
            if size is not None and generator is not None:
                image, label = self._crop(index, size, generator, foreground)
            self._advise(index, image, label)
            self._awaited.add(index)

    def patches(
        self,
        indices: Tensor,
        size: Sequence[int],
        generator: torch.Generator,
        labelled: bool = True,
        foreground: float = 0.5,
    ) -> tuple[Tensor, Tensor]:
        """Random crops ``(batch, channel, *size)`` and their labels ``(batch, *size)`` in int64.

        About a share ``foreground`` of the crops are centred on foreground (a class at random, then a voxel of it);
        none with ``labelled = False``, which looks at no label. Images smaller than the crop are padded with zeros.
        """
        chosen = indices.tolist()
        crops = [self._crop(index, size, generator, foreground if labelled else 0.0) for index in chosen]
        for index, crop in zip(chosen, crops, strict=True):
            if index not in self._awaited:
                self._advise(index, *crop)
        self._awaited.difference_update(chosen)
        if self.moments is not None:
            rows = [torch.tensor([self._row(index)]) for index in chosen]
            crops = [(self._scaled(crop[None], row)[0], label) for (crop, label), row in zip(crops, rows, strict=True)]
        crops = [padded(*crop, size) for crop in crops]
        return torch.stack([image for image, _ in crops]), torch.stack([label for _, label in crops]).long()

    def subset(self, mask: Tensor) -> ImageSet:
        """The images where ``mask`` ``(count,)`` is true, without copying any."""
        chosen = mask.nonzero().flatten()
        rows = chosen if self._rows is None else self._rows[chosen]
        return ImageSet(
            self._images, self._labels, self.labelled[chosen], [self.samples[i] for i in chosen.tolist()], rows,
            label_rows=self._label_rows, foreground=self._stored, ahead=self._ahead, moments=self.moments,
            scale=self._scale,
        )  # fmt: skip

    def by_site(self, intensity: SiteIntensity) -> ImageSet:
        """The same images, scaled by numbers of their site; nothing is copied."""
        if self.moments is None or self._rows is not None:
            raise ValueError("only a whole set of images with moments is scaled by its site")
        seen = len(self._images[0]) if len(self) else 0
        rows = []
        for sample in self.samples:
            channels = len(self.moments.by_image[sample.name])
            rows.append(intensity.of_channels(channels, self.moments.absent(sample.name), seen // channels))
        scale = torch.stack([mean for mean, _ in rows]), torch.stack([deviation for _, deviation in rows])
        return ImageSet(
            self._images, self._labels, self.labelled, self.samples, label_rows=self._label_rows,
            foreground=self._stored, ahead=self._ahead, moments=self.moments, scale=scale,
        )  # fmt: skip

    def _scaled(self, images: Tensor, rows: Tensor | slice) -> Tensor:
        """Images ``(batch, channel, *spatial)`` of these rows as they are to be seen."""
        if self.moments is None:
            return images
        if self._scale is None:
            raise ValueError("data.intensity = site, and the mean and deviation of these images' site are not settled")
        mean, deviation = self._scale
        return standardised(images, mean[rows], deviation[rows], self.moments.settings.nonzero)

    def _views(self, index: int) -> tuple[Tensor, Tensor]:
        """An image as it is stored, and its label."""
        image, place = self._images[self._row(index)], self._label_row(index)
        return image, self._labels[place] if place >= 0 else _NOTHING.expand(image.shape[1:])

    def _row(self, index: int) -> int:
        return index if self._rows is None else int(self._rows[index])

    def _labels_of(self, rows: Tensor, spatial: Sequence[int]) -> Tensor:
        """Labels ``(batch, *spatial)`` in int64 of images that share one size."""
        if self._complete and isinstance(self._labels, Tensor):
            return self._labels[self._label_rows[rows]].long()
        labels, places = torch.zeros(len(rows), *spatial, dtype=torch.long), self._label_rows[rows]
        known = places >= 0
        if isinstance(self._labels, Tensor) and known.any():
            labels[known] = self._labels[places[known]].long()
        return labels

    def _label_row(self, index: int) -> int:
        return int(self._label_rows[self._row(index)])

    def _crop(
        self, index: int, size: Sequence[int], generator: torch.Generator, foreground: float
    ) -> tuple[Tensor, Tensor]:
        """Views of a random patch of an image as it is stored and of its label, as far as the image reaches."""
        image, label = self._views(index)
        box = random_box(label.shape, size, generator, partial(self._foreground, index), foreground)
        return image[(slice(None), *box)], label[box]

    def _advise(self, index: int, image: Tensor, label: Tensor) -> None:
        """Start to read views of an image and of its label."""
        if self._ahead[0] is not None:
            self._ahead[0].will_need(image)
        if self._ahead[1] is not None and self._label_row(index) >= 0:
            self._ahead[1].will_need(label)

    def _foreground(self, index: int) -> list[Tensor]:
        """Flat positions of some voxels of each foreground class that an image has."""
        if index not in self._found:
            place = self._label_row(index)
            stored = self._stored.of(place) if self._stored is not None and place >= 0 else None
            if stored is not None:
                return stored
            if place >= 0 and self._ahead[1] is not None:
                self._ahead[1].will_need(self._labels[place])
            self._found[index] = list(foreground_voxels(self._labels[place]).values()) if place >= 0 else []
        return self._found[index]
