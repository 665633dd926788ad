"""Boxes that are cut out of one image and pasted into another: CutMix (Yun et al., ICCV 2019) as AugSeg draws it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Views = tuple[Tensor, Tensor, Tensor]
"""Images ``(batch, channel, *spatial)``, labels and confidences ``(batch, *spatial)``."""


def draw_beta(first: int, second: int, generator: torch.Generator) -> float:
    """A number from Beta(first, second): of ``first + second - 1`` uniform numbers, the ``first`` smallest."""
    return float(torch.rand(first + second - 1, generator=generator).sort().values[first - 1])


def draw_boxes(batch: int, spatial: Sequence[int], share: float, generator: torch.Generator) -> Tensor:
    """Boxes of one size, a share of the image, at a place of their own in every image: ``(batch, *spatial)``, bool.

    Centres lie anywhere but in the first eighth of an axis; what reaches over the image's edge is cut off.
    """
    dims, inside = len(spatial), torch.ones(batch, *[1] * len(spatial), dtype=torch.bool)
    for axis, size in enumerate(spatial):
        half = int(size * share ** (1 / dims)) // 2
        centres = torch.randint(size // 8, size, (batch, 1), generator=generator)
        places = torch.arange(size)
        within = (places >= centres - half) & (places < centres + half)
        inside = inside & within.view(batch, *[size if other == axis else 1 for other in range(dims)])
    return inside.expand(batch, *spatial)


def paste(boxes: Tensor, donors: Views, targets: Views) -> Views:
    """The targets, with the donors inside the boxes ``(batch, *spatial)``."""
    images = torch.where(boxes.unsqueeze(1), donors[0], targets[0])
    return images, torch.where(boxes, donors[1], targets[1]), torch.where(boxes, donors[2], targets[2])
