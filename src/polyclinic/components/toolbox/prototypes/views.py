"""A feature map, or a fused pyramid of them, as pixels that are compared with prototypes."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.prototypes.grids import resize_labels


class View(Protocol):
    """Pixels with labels ``(n,)`` and embeddings of ``channels`` numbers that need not exist as one tensor."""

    labels: Tensor
    channels: int

    def compare(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products ``(n, vectors)`` with ``vectors`` ``(vectors, channels)``, and squared norms ``(n,)``."""

    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Sum of the embeddings of each class ``(class, channels)``, and the number of its pixels ``(class,)``."""


class MapView:
    """One feature map ``(batch, channel, *spatial)`` with labels ``(batch, *any)`` resized to it."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features = features.float().flatten(2)
        self.channels = features.shape[1]
        self._labels = resize_labels(labels, tuple(features.shape[2:])).flatten(1).long()
        self.labels = self._labels.flatten()

    def compare(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products ``(n, vectors)`` and squared norms ``(n,)``."""
        dots = torch.einsum("bcn,pc->bnp", self.features, vectors)
        return dots.flatten(0, 1), self.features.square().sum(1).flatten()

    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Sums ``(class, channels)`` and counts ``(class,)``."""
        sums, counts = self.image_sums(classes)
        return sums.sum(0), counts.sum(0)

    def image_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """The same for each image: ``(batch, class, channels)`` and ``(batch, class)``."""
        onehot = F.one_hot(self._labels, classes)
        sums = onehot.to(self.features.dtype).transpose(1, 2) @ self.features.transpose(1, 2)
        return sums, onehot.sum(1)
