"""Where a random patch of an image lies, and the zeros around an image that is smaller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

Box = tuple[slice, ...]


def random_box(
    shape: Sequence[int],
    size: Sequence[int],
    generator: torch.Generator,
    foreground: Callable[[], Sequence[Tensor]],
    share: float = 0.5,
) -> Box:
    """A box of ``size`` in an image of ``shape``; it begins inside and may reach over the far end.

    About a ``share`` of the boxes are centred on foreground, of which flat positions are given by class: a class at
    random, then a voxel of it; without a share nobody asks for the foreground. The number of draws does not depend on
    where the box lies.
    """
    draws = torch.rand(len(shape) + 3, generator=generator).tolist()
    starts = [int(draw * (max(n - s, 0) + 1)) for draw, n, s in zip(draws[3:], shape, size, strict=True)]
    if draws[0] < share and (classes := foreground()):
        voxels = classes[int(draws[1] * len(classes))]
        centre = torch.unravel_index(voxels[int(draws[2] * len(voxels))].long(), tuple(shape))
        starts = [min(max(int(c) - s // 2, 0), max(n - s, 0)) for c, n, s in zip(centre, shape, size, strict=True)]
    return tuple(slice(start, start + s) for start, s in zip(starts, size, strict=True))


def padded(image: Tensor, label: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """An image ``(channel, *spatial)`` and its label with zeros behind them up to ``size``."""
    missing = [(0, s - n) for n, s in zip(label.shape, size, strict=True)]
    if not any(after for _, after in missing):
        return image, label
    margins = [margin for axis in reversed(missing) for margin in axis]
    return pad(image, margins), pad(label, margins)
