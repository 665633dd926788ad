"""HarmoFL's amplitude normalisation in operations that every runtime knows, for exported graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyclinic.components.toolbox.fourier_matrices import coefficients, half_weights, real_sum

if TYPE_CHECKING:
    from polyclinic.components.images.amplitude_normalisation import AmplitudeWindow


class PlainAmplitudeWindow(nn.Module):
    """An ``AmplitudeWindow`` that computes the coefficients of its window alone, and adds what they change.

    Frequencies that an image of another size does not have stay as they are, as there.
    """

    amplitude: Tensor

    def __init__(self, window: AmplitudeWindow) -> None:
        super().__init__()
        self.trained, self.whole = tuple(window.size or ()), window.whole
        self.register_buffer("amplitude", window.amplitude.clone())
        for axis, (half, known) in enumerate(zip(window.halves, window.amplitude.shape[1:], strict=True)):
            frequencies = torch.cat([torch.arange(half + 1), torch.arange(half + 1 - known, 0)])
            self.register_buffer(f"frequencies{axis}", frequencies)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(batch, channel, *spatial)`` with their own phase and the common amplitude."""
        sizes = images.shape[2:]
        if self.whole and tuple(sizes) != self.trained:
            raise ValueError(f"amplitudes of the size {list(self.trained)} alone are known")
        frequencies = [self.get_buffer(f"frequencies{axis}") for axis in range(len(sizes))]
        pixels = 1
        for size in sizes:
            pixels = pixels * size
        real, imaginary = (part / pixels for part in coefficients(images, frequencies))
        found = (real.square() + imaginary.square()).sqrt()
        shrink = self.amplitude / torch.where(found > 0, found, 1.0) - 1
        change_real = torch.where(found > 0, real * shrink, self.amplitude)
        change_imaginary = torch.where(found > 0, imaginary * shrink, 0.0)
        weights = self._weights(frequencies, sizes)
        return images + real_sum((change_real * weights, change_imaginary * weights), frequencies, sizes)

    def _weights(self, frequencies: list[Tensor], sizes: torch.Size) -> Tensor:
        """How often each coefficient counts ``(*frequency)``: not at all where an image has no such frequency."""
        weights = torch.ones((), device=self.amplitude.device)
        for axis, (chosen, size, trained) in enumerate(zip(frequencies, sizes, self.trained, strict=True)):
            # The highest frequency of an even number of pixels is both n / 2 and -n / 2, which differ at other sizes.
            known = (2 * chosen.abs() < size) | ((2 * chosen == size) & (torch.zeros_like(chosen) + size == trained))
            counted = half_weights(chosen, size) if axis == len(sizes) - 1 else torch.ones_like(known)
            shape = [-1 if other == axis else 1 for other in range(len(sizes))]
            weights = weights * (known * counted).to(torch.float32).view(shape)
        return weights
