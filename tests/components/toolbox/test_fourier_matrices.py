"""Coefficients by matrices are those of the FFT."""

from __future__ import annotations

import pytest
import torch

from polyclinic.components.toolbox.fourier_matrices import coefficients, half_weights, real_sum

SIZES = [(8, 6), (7, 9), (6, 5, 4)]


@pytest.mark.parametrize("size", SIZES)
def test_all_frequencies_are_those_of_the_fft(size: tuple[int, ...]) -> None:
    maps = torch.rand(2, 3, *size)
    real, imaginary = coefficients(maps, [torch.arange(n) for n in size])
    wanted = torch.fft.fftn(maps, dim=tuple(range(2, maps.dim())))
    torch.testing.assert_close(torch.complex(real, imaginary), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_a_half_spectrum_gives_the_maps_back(size: tuple[int, ...]) -> None:
    maps = torch.rand(2, 3, *size)
    frequencies = [*(torch.arange(n) for n in size[:-1]), torch.arange(size[-1] // 2 + 1)]
    weights = half_weights(frequencies[-1], size[-1]) / maps[0, 0].numel()
    real, imaginary = (part * weights for part in coefficients(maps, frequencies))
    torch.testing.assert_close(real_sum((real, imaginary), frequencies, size), maps, atol=1e-5, rtol=1e-5)


def test_negative_and_large_frequencies_keep_their_place() -> None:
    """At 1,000 pixels an angle that is not reduced first would be off by far more than this."""
    maps = torch.rand(1, 1, 1000, 3)
    real, _ = coefficients(maps, [torch.tensor([-1, 999]), torch.arange(3)])
    torch.testing.assert_close(real[0, 0, 0], real[0, 0, 1])
    wanted = torch.fft.fftn(maps.double(), dim=(2, 3))[0, 0, 999].real
    torch.testing.assert_close(real[0, 0, 1].double(), wanted, atol=1e-3, rtol=1e-4)
