"""Fourier coefficients of real maps as matrix products, for exported graphs: most runtimes know no FFT.

Sizes may be those of a graph that is traced, where they are no plain numbers: nothing here branches on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def coefficients(maps: Tensor, frequencies: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Real and imaginary part ``(batch, channel, *frequency)`` of the sums of ``maps exp(-2 pi i k x / n)``.

    ``maps`` is ``(batch, channel, *spatial)``; ``frequencies`` has the whole numbers ``k`` of each spatial axis.
    """
    real, imaginary = maps, torch.zeros_like(maps)
    for axis, chosen in enumerate(frequencies, 2):
        cosines, sines = _waves(chosen, maps.shape[axis])
        real, imaginary = (
            _product(real, cosines, axis) + _product(imaginary, sines, axis),
            _product(imaginary, cosines, axis) - _product(real, sines, axis),
        )
    return real, imaginary


def real_sum(parts: tuple[Tensor, Tensor], frequencies: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The real part ``(batch, channel, *spatial)`` of the sums of ``coefficient exp(2 pi i k x / n)``."""
    real, imaginary = parts
    for axis, (chosen, size) in enumerate(zip(frequencies, sizes, strict=True), 2):
        cosines, sines = (wave.T for wave in _waves(chosen, size))
        real, imaginary = (
            _product(real, cosines, axis) - _product(imaginary, sines, axis),
            _product(imaginary, cosines, axis) + _product(real, sines, axis),
        )
    return real


def half_weights(frequencies: Tensor, size: int) -> Tensor:
    """How often each frequency of a half spectrum counts: twice, for its mirror, unless it is its own mirror."""
    own_mirror = (frequencies == 0) | (2 * frequencies == size)
    return torch.where(own_mirror, 1.0, 2.0)


def _waves(frequencies: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """``cos`` and ``sin`` of ``2 pi k x / n``, ``(frequency, n)``; the remainder keeps large angles exact."""
    places = torch.arange(size, device=frequencies.device)
    # The size as a tensor, because ONNX has no remainder by a number that is known later.
    turns = torch.remainder(frequencies[:, None] * places[None, :], places[-1] + 1)
    angles = turns.to(torch.float32) * (2 * math.pi) / size
    return angles.cos(), angles.sin()


def _product(maps: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """``matrix`` ``(to, from)`` along one axis of the maps."""
    return (maps.transpose(axis, -1) @ matrix.transpose(0, 1)).transpose(axis, -1)
