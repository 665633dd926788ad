"""A feature map, or a fused pyramid of them, as pixels that are compared with prototypes."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.prototypes.grids import class_counts, resize_labels

Cells = Literal["nearest", "majority", "share"]
"""What the label of a cell of a coarse map is: that of its first pixel, that of most of its pixels, or all of them."""


class View(Protocol):
    """Pixels with labels ``(n,)`` and embeddings of ``channels`` numbers that need not exist as one tensor."""

    labels: Tensor
    channels: int
    weights: Tensor | None
    """How often each pixel counts ``(n,)``, where that is not once."""

    def compare(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products ``(n, vectors)`` with ``vectors`` ``(vectors, channels)``, and squared norms ``(n,)``."""

    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Sum of the embeddings of each class ``(class, channels)``, and the number of its pixels ``(class,)``."""

    def image_counts(self, classes: int) -> Tensor:
        """The number of pixels of each class in each image ``(batch, class)``."""


class MapView:
    """One feature map ``(batch, channel, *spatial)`` with labels ``(batch, *any)`` brought to it.

    ``cells`` says how. With ``share`` a cell is there once for each of the ``classes``, and counts as often as it has
    pixels of that class: as if every pixel of the labels had the embedding of its cell. Of equally frequent classes the
    first is the majority.
    """

    def __init__(self, features: Tensor, labels: Tensor, cells: Cells = "nearest", classes: int = 0) -> None:
        self.features = features.float().flatten(2)
        self.channels = features.shape[1]
        self.weights: Tensor | None = None
        size = tuple(features.shape[2:])
        self._counts = None if cells == "nearest" else class_counts(labels, size, classes).flatten(2).transpose(1, 2)
        if self._counts is None:
            self._labels = resize_labels(labels, size).flatten(1).long()
        else:
            self._labels = self._counts.argmax(2)
        self.labels, self._repeats = self._labels.flatten(), 1
        if cells == "majority":
            self._counts = None
        elif self._counts is not None:
            self.labels = torch.arange(classes, device=labels.device).repeat(self._labels.numel())
            self.weights, self._repeats = self._counts.flatten(), classes

    def compare(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products ``(n, vectors)`` and squared norms ``(n,)``."""
        dots = torch.einsum("bcn,pc->bnp", self.features, vectors).flatten(0, 1)
        squares = self.features.square().sum(1).flatten()
        if self._repeats == 1:
            return dots, squares
        return dots.repeat_interleave(self._repeats, 0), squares.repeat_interleave(self._repeats, 0)

    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Sums ``(class, channels)`` and counts ``(class,)``."""
        sums, counts = self.image_sums(classes)
        return sums.sum(0), counts.sum(0)

    def image_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """The same for each image: ``(batch, class, channels)`` and ``(batch, class)``."""
        onehot = F.one_hot(self._labels, classes) if self._counts is None else self._counts
        sums = onehot.to(self.features.dtype).transpose(1, 2) @ self.features.transpose(1, 2)
        return sums, onehot.sum(1)

    def image_counts(self, classes: int) -> Tensor:
        """Pixels of each class in each image ``(batch, class)``."""
        return (F.one_hot(self._labels, classes) if self._counts is None else self._counts).sum(1)
