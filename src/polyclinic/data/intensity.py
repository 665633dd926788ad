"""Scaling of intensities, channel by channel, in plain PyTorch.

The numbers are those of MONAI's ``ScaleIntensity``, ``NormalizeIntensity`` and ``ScaleIntensityRangePercentiles``, bit
for bit; MONAI itself takes longer to import than a site of pictures takes to read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polyclinic.recipe import DataSettings

_MOST_FOR_QUANTILE = 1_000_000  # torch.quantile refuses sixteen times as many, and is slow long before


def scaled(voxels: Tensor, settings: DataSettings, highest: float | None) -> Tensor:
    """Scale ``(channel, *spatial)`` in float32: each channel by its own values, or all from 0 to ``highest``."""
    if settings.intensity in ("full-range", "site") and highest is not None:
        return voxels / highest
    lower, upper = settings.percentiles
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "zero-one": zero_one,
        "z-score": lambda channel: z_score(channel, settings.nonzero),
        "percentile": lambda channel: percentile_range(channel, lower, upper),
    }
    way = ways.get(settings.intensity)
    return voxels if way is None else torch.stack([way(channel) for channel in voxels])


def zero_one(channel: Tensor) -> Tensor:
    """From the smallest value to the largest; a constant channel becomes 0."""
    lowest, highest = channel.min(), channel.max()
    if lowest == highest:
        return torch.zeros_like(channel)
    return (channel - lowest) / (highest - lowest)


def z_score(channel: Tensor, nonzero: bool) -> Tensor:
    """Mean 0 and standard deviation 1, over all voxels, or over those that are not 0, the others staying 0."""
    mask = channel != 0 if nonzero else None
    values = channel if mask is None else channel[mask]
    if not values.numel():
        return channel
    normalised = (values - values.mean().item()) / (values.std(unbiased=False).item() or 1.0)
    return normalised if mask is None else channel.masked_scatter(mask, normalised)


def percentile_range(channel: Tensor, lower: float, upper: float) -> Tensor:
    """From one percentile to another, cut off outside; where both are equal, the distance from them."""
    low, high = _percentile(channel, lower), _percentile(channel, upper)
    if low == high:
        return channel - low
    return ((channel - low) / (high - low)).clamp(0.0, 1.0)


def _percentile(channel: Tensor, percent: float) -> Tensor:
    if channel.numel() > _MOST_FOR_QUANTILE:
        return torch.tensor(np.percentile(channel.numpy(), np.asarray(percent)), dtype=channel.dtype)
    return torch.quantile(channel, torch.tensor(percent / 100.0, dtype=channel.dtype))
