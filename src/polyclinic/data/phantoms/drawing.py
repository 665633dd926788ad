"""What the phantoms draw with: smooth noise, wobbly outlines and soft edges, all vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Drawing:
    """One image ``(*spatial, channel)`` or ``(*spatial)`` of integers, its mask ``(*spatial)``, its spacing in mm."""

    image: NDArray[Any]
    mask: NDArray[np.uint8]
    spacing: tuple[float, ...]


def coordinates(size: tuple[int, ...]) -> tuple[Array, ...]:
    """Coordinates from -1 to 1 along each axis, measured at the middle of the pixels, each ``(*spatial)``."""
    axes = [(np.arange(length, dtype=np.float32) + 0.5) * (2 / length) - 1 for length in size]
    return tuple(np.meshgrid(*axes, indexing="ij"))


def blurred(image: Array, sigma: float | tuple[float, ...], mode: str = "reflect") -> Array:
    """``image`` ``(*spatial)`` behind a Gaussian of ``sigma`` pixels."""
    # Here, because a demo that was drawn before is only read.
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(image, sigma, mode=mode))


def smooth_noise(rng: np.random.Generator, size: tuple[int, ...], sigma: float | tuple[float, ...]) -> Array:
    """Gaussian noise ``(*spatial)`` blurred by ``sigma`` pixels, with mean 0 and deviation 1."""
    noise = blurred(rng.standard_normal(size, dtype=np.float32), sigma, mode="wrap")
    return np.asarray((noise - noise.mean()) / max(float(noise.std()), 1e-6), dtype=np.float32)


def soft_step(level: Array, width: float) -> Array:
    """A smooth step ``(*spatial)`` from 0 where ``level`` is above 1, to 1 where it is below, ``width`` wide."""
    return np.asarray(0.5 - 0.5 * np.tanh((level - 1) / width), dtype=np.float32)


def wobble(rng: np.random.Generator, angle: Array, strength: float, harmonics: tuple[int, ...] = (2, 3, 4)) -> Array:
    """Radius of a wobbly circle at every ``angle``, about 1; the coarse waves are the strong ones."""
    radius = np.ones_like(angle)
    for order in harmonics:
        amplitude, phase = rng.normal(0, strength / order), rng.uniform(0, 2 * np.pi)
        radius += np.float32(amplitude) * np.cos(order * angle + np.float32(phase))
    return np.maximum(radius, np.float32(0.4))


def ellipse(
    axes: tuple[Array, ...], centre: tuple[float, ...], radii: tuple[float, ...], angle: float = 0.0
) -> tuple[Array, Array]:
    """Level ``(*spatial)``, 1 on the outline, and polar angle of an ellipse or ellipsoid turned in its first plane."""
    moved = [axis - np.float32(middle) for axis, middle in zip(axes, centre, strict=True)]
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    moved[0], moved[1] = cos * moved[0] + sin * moved[1], cos * moved[1] - sin * moved[0]
    scaled = [axis / np.float32(radius) for axis, radius in zip(moved, radii, strict=True)]
    level = np.sqrt(np.sum(np.square(scaled), axis=0, dtype=np.float32))
    return np.asarray(level, dtype=np.float32), np.asarray(np.arctan2(scaled[1], scaled[0]), dtype=np.float32)


def bias_field(rng: np.random.Generator, size: tuple[int, ...], strength: float) -> Array:
    """A slow multiplicative shading ``(*spatial)`` about 1, as of a receiver coil."""
    sigma = tuple(length / 3 for length in size)
    return np.asarray(np.exp(np.float32(strength) * smooth_noise(rng, size, sigma)), dtype=np.float32)


def rician(rng: np.random.Generator, image: Array, deviation: float) -> Array:
    """The magnitude of ``image`` with complex noise, as a scanner measures it."""
    real, imaginary = rng.standard_normal((2, *image.shape), dtype=np.float32) * np.float32(deviation)
    return np.asarray(np.hypot(image + real, imaginary), dtype=np.float32)
