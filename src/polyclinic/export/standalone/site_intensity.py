"""Intensities by the mean and deviation of a site's images, or of all images that are given together.

They are those of all voxels after orientation and spacing, before cropping and resizing; with ``nonzero`` of the voxels
that are not 0. Needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Moments = list[tuple[float, float, float]]
"""Of each channel of an image: the number of voxels that count, their sum, and the sum of their squares."""


def moments_of(voxels: Array, nonzero: bool, absent: Collection[int] = ()) -> Moments:
    """Of an image ``(channel, *spatial)``, without the channels ``absent``, which have no file."""
    found: Moments = []
    for number, channel in enumerate(voxels):
        values = channel.astype(np.float64)
        count = 0 if number in absent else int(np.count_nonzero(values)) if nonzero else values.size
        found.append((float(count), float(values.sum()), float(np.square(values).sum())) if count else (0.0, 0.0, 0.0))
    return found


def intensity_of(images: Iterable[Moments], statistics: str) -> dict[str, list[float]]:
    """``mean`` and ``deviation`` over all voxels: one number each if ``statistics`` is scalar, else one a channel."""
    channels: list[Any] = list(zip(*images, strict=True))
    groups = [[row for channel in channels for row in channel]] if statistics == "scalar" else channels
    pairs = [_mean_and_deviation(rows) for rows in groups]
    return {"mean": [mean for mean, _ in pairs], "deviation": [deviation for _, deviation in pairs]}


def _mean_and_deviation(rows: Iterable[Sequence[float]]) -> tuple[float, float]:
    count, total, squares = (math.fsum(column) for column in zip((0.0, 0.0, 0.0), *rows, strict=True))
    if not count:
        return 0.0, 1.0
    mean = total / count
    variance = squares / count - mean**2
    # Rounding leaves a little of a constant's variance, which must not blow its noise up.
    return mean, math.sqrt(variance) if variance > 1e-12 * mean**2 else 1.0


def standardised(
    voxels: Array, mean: Sequence[float], deviation: Sequence[float], nonzero: bool, absent: Collection[int] = ()
) -> Array:
    """``(x - mean) / deviation`` for ``(channel, *spatial)``; channels ``absent`` stay, and with ``nonzero`` all 0."""
    each, result = len(voxels) // len(mean), voxels.astype(np.float32)
    pairs = zip([*mean] * each, [*deviation] * each, strict=True)
    for number, (middle, width) in enumerate(pairs):
        if number not in absent:
            scaled = (result[number] - np.float32(middle)) / np.float32(width)
            result[number] = np.where(result[number] != 0, scaled, 0) if nonzero else scaled
    return result
