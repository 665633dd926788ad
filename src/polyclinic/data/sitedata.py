"""The prepared images of one site with their split, as the spine uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyclinic.data.imageset import Sample


class Images(Protocol):
    """What training and evaluation need of prepared images."""

    samples: list[Sample]
    labelled: Tensor

    @property
    def uniform(self) -> bool:
        """Whether any images make a batch."""
        ...

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(batch, channel, *spatial)`` and labels ``(batch, *spatial)``."""
        ...

    def patches(
        self, indices: Tensor, size: tuple[int, ...], generator: torch.Generator, *, foreground: float = 0.5
    ) -> tuple[Tensor, Tensor]:
        """Random patches of images and labels, a share of them on foreground."""
        ...

    def will_need(
        self,
        indices: Tensor,
        size: tuple[int, ...] | None = None,
        generator: torch.Generator | None = None,
        foreground: float = 0.5,
    ) -> None:
        """Have images, or the patches that ``generator`` would draw of them, read from the disk soon."""
        ...


@dataclass(frozen=True)
class SiteData:
    """Prepared images of a site, and the indices of each split."""

    site: str
    images: Images
    splits: Mapping[str, Tensor]

    def learning_sites(self, unlabelled: bool) -> int:
        """Sites with images to learn from, labelled ones or, with ``unlabelled``, any: this one, or those pooled here.

        What a recipe asks of every site is asked of their pooled images as often.
        """
        return int(len(self.training_indices(None if unlabelled else True)) > 0)

    def training_indices(self, labelled: bool | None = None) -> Tensor:
        """Indices of training images: all, or only those with (``True``) or without (``False``) a label."""
        indices = self.splits["train"]
        if labelled is None:
            return indices
        return indices[self.images.labelled[indices] == labelled]

    def labelled_indices(self, split: str) -> Tensor:
        """Indices of a split's images that can be scored."""
        indices = self.splits[split]
        return indices[self.images.labelled[indices]]


class Pooled:
    """Several sites' images as one, without a copy: the data of the ``central`` reference."""

    def __init__(self, sets: Sequence[Images]) -> None:
        self.sets = sets
        self.samples = [sample for images in sets for sample in images.samples]
        self.labelled = torch.cat([images.labelled for images in sets])
        self.starts = torch.tensor([0, *map(len, sets)]).cumsum(0)

        first = torch.tensor([0])
        shapes = {tuple(images.batch(first)[0].shape[1:]) for images in sets if images.uniform and len(images)}
        self.uniform = all(images.uniform for images in sets) and len(shapes) <= 1

    def __len__(self) -> int:
        return int(self.starts[-1])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the sites' images in the order of ``indices``."""
        return self._collect(indices, lambda images, rows: images.batch(rows))

    def patches(
        self, indices: Tensor, size: tuple[int, ...], generator: torch.Generator, *, foreground: float = 0.5
    ) -> tuple[Tensor, Tensor]:
        """Random patches of images and labels, a share of them on foreground."""
        return self._collect(indices, lambda images, rows: images.patches(rows, size, generator, foreground=foreground))

    def will_need(
        self,
        indices: Tensor,
        size: tuple[int, ...] | None = None,
        generator: torch.Generator | None = None,
        foreground: float = 0.5,
    ) -> None:
        """Each site's images in the order in which ``batch`` and ``patches`` read them."""
        for number, rows in self._owners(indices):
            self.sets[number].will_need(indices[rows] - self.starts[number], size, generator, foreground)

    def _owners(self, indices: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The number of each site that images are from, and their places in ``indices``."""
        owner = torch.bucketize(indices, self.starts, right=True) - 1
        for number in torch.unique(owner).tolist():
            yield number, (owner == number).nonzero().flatten()

    def _collect(
        self, indices: Tensor, take: Callable[[Images, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        images, labels, places = [], [], []
        for number, rows in self._owners(indices):
            part = take(self.sets[number], indices[rows] - self.starts[number])
            images.append(part[0])
            labels.append(part[1])
            places.append(rows)
        order = torch.cat(places).argsort()
        return torch.cat(images)[order], torch.cat(labels)[order]


@dataclass(frozen=True)
class PooledData(SiteData):
    """The images of several ``sites`` in one place."""

    sites: tuple[SiteData, ...]

    def learning_sites(self, unlabelled: bool) -> int:
        """Those of the pooled sites that have images to learn from."""
        return sum(site.learning_sites(unlabelled) for site in self.sites)


def pool(sites: Sequence[SiteData], name: str) -> SiteData:
    """All sites' data in one place."""
    images = Pooled([site.images for site in sites])
    splits = {
        split: torch.cat([site.splits[split] + start for site, start in zip(sites, images.starts[:-1], strict=True)])
        for split in sites[0].splits
    }
    return PooledData(name, images, splits, tuple(sites))
