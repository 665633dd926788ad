"""A random sample of the pixels of a batch, regardless of their class, and their rows in a feature map."""

from __future__ import annotations

import torch
from torch import Tensor

# Permuting up to this many times the wanted number is cheap; a whole volume would take longer than the loss.
_LARGEST_PERMUTATION = 64


def draw_pixels(maps: Tensor, wanted: int, generator: torch.Generator) -> Tensor:
    """``wanted`` different pixels of maps ``(batch, channel, *spatial)``, numbered image by image, on their device."""
    return draw_distinct(maps.numel() // maps.shape[1], wanted, generator).to(maps.device)


def draw_distinct(total: int, wanted: int, generator: torch.Generator) -> Tensor:
    """``wanted`` different numbers below ``total``, every set equally likely; all of them if there are not more."""
    if total <= wanted:
        return torch.arange(total)
    if total <= _LARGEST_PERMUTATION * wanted:
        return torch.randperm(total, generator=generator)[:wanted]
    # So few of so many rarely collide: of twice the wanted number enough are different.
    draws = torch.randint(total, (2 * wanted,), generator=generator)
    different: Tensor = draws.unique()  # type: ignore[no-untyped-call]
    return different[torch.randperm(len(different), generator=generator)[:wanted]]


def rows_of_pixels(maps: Tensor, pixels: Tensor) -> Tensor:
    """Rows ``(pixel, channel)`` of maps ``(batch, channel, *spatial)``; pixels are numbered image by image."""
    flat = maps.flatten(2)
    return flat[pixels // flat.shape[2], :, pixels % flat.shape[2]].float()
