"""FSR in operations that every runtime knows: the same map as ``fsr.py``, for exported graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyclinic.components.toolbox.fourier_matrices import coefficients, half_weights

if TYPE_CHECKING:
    from polyclinic.components.features.fsr import StyleRecalibration

_EPS = 1e-5


class PlainRecalibration(nn.Module):
    """A ``StyleRecalibration`` without its own backward pass, and with matrices in place of the FFT."""

    def __init__(self, recalibration: StyleRecalibration) -> None:
        super().__init__()
        self.recalibration = recalibration

    def forward(self, x: Tensor) -> Tensor:
        """The recalibrated map ``(batch, channel, *spatial)``."""
        rows, size = x.flatten(2), 1
        for axis in range(2, x.dim()):
            size = size * x.shape[axis]
        mean = rows.mean(2)
        centred = rows - mean[..., None]
        deviation = (centred.square().mean(2) + _EPS).sqrt()
        normal = (centred / deviation[..., None]).reshape(x.shape)
        amplitude = torch.zeros_like(mean)
        if self.recalibration.form == "paper":
            amplitude = _amplitude_sum(normal) * deviation
        rule, weights = self.recalibration._rule, self.recalibration.parameters()
        gain, offset = rule(size, mean, deviation, amplitude, *weights)
        return (normal.flatten(2) * gain[..., None] + offset[..., None]).reshape(x.shape)


def _amplitude_sum(maps: Tensor) -> Tensor:
    """Sum over the full spectrum, constant term excluded, of maps ``(batch, channel, *spatial)``."""
    *others, last = maps.shape[2:]
    frequencies = [torch.arange(size, device=maps.device) for size in others]
    frequencies.append(torch.arange(last // 2 + 1, device=maps.device))
    real, imaginary = coefficients(maps, frequencies)
    amplitude = (real.square() + imaginary.square()).sqrt()
    whole = (amplitude * half_weights(frequencies[-1], last)).flatten(2)
    return whole.sum(2) - whole[..., 0]
