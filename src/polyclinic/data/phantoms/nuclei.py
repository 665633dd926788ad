"""Stained tissue, 2D in colour: cell nuclei among red cells, fibres, debris and nuclei out of focus.

Light passes two stains (Beer-Lambert): ``colour = white * exp(-(stain concentrations @ stain colours))``. The sites
draw the same tissue and differ in the stains' colours and strengths, the chromatin, the focus and the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.phantoms.drawing import (
    Array,
    Drawing,
    blurred,
    coordinates,
    ellipse,
    smooth_noise,
    soft_step,
    wobble,
)

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Style:
    """How one site stains and photographs. Colours are optical densities of red, green and blue."""

    nuclear: Colour = (0.65, 0.70, 0.29)
    tissue: Colour = (0.07, 0.99, 0.11)
    nuclear_strength: float = 1.0
    tissue_strength: float = 0.4
    hollow: float = 0.1  # how much paler the middle of a nucleus is than its rim
    chromatin: float = 0.15  # deviation of the texture inside a nucleus
    haze: float = 0.45  # strength of nuclei that are out of focus, which no mask holds
    white: Colour = (0.96, 0.95, 0.97)
    blur: float = 0.5
    noise: float = 0.015
    zoom: float = 1.0  # how large the nuclei are
    crowd: float = 1.0  # how many they are


STYLES = {
    "hospital-a": Style(),
    "hospital-b": Style(
        nuclear=(0.52, 0.78, 0.35), tissue=(0.45, 0.80, 0.40), nuclear_strength=1.5, tissue_strength=0.95, hollow=0.25,
        chromatin=0.25, haze=0.4, white=(0.93, 0.90, 0.96), blur=0.4, noise=0.02,
    ),
    "hospital-c": Style(
        nuclear=(0.60, 0.62, 0.25), tissue=(0.20, 0.60, 0.35), nuclear_strength=0.45, tissue_strength=0.30, hollow=0.65,
        chromatin=0.10, haze=0.2, white=(0.93, 0.94, 0.90), blur=0.9, noise=0.03,
    ),
    "hospital-d": Style(
        nuclear=(0.27, 0.57, 0.78), tissue=(0.75, 0.50, 0.20), nuclear_strength=0.9, tissue_strength=0.45, hollow=0.0,
        chromatin=0.30, haze=0.5, white=(0.90, 0.93, 0.95), blur=0.6, noise=0.025,
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one field of view in a site's style: image ``(row, column, 3)`` of bytes."""
    style, axes = STYLES[site], pixels(size)
    mask, nuclear = draw_nuclei(rng, axes, style)
    tissue = draw_tissue(rng, axes)
    nuclear = nuclear + draw_haze(rng, axes, style)
    return Drawing(photograph(rng, nuclear, tissue, style), mask.astype(np.uint8), (1.0, 1.0))


def pixels(size: tuple[int, ...]) -> tuple[Array, ...]:
    """Coordinates in pixels from the middle of the image, each ``(row, column)``."""
    return tuple(axis * np.float32(length / 2) for axis, length in zip(coordinates(size), size, strict=True))


def photograph(rng: np.random.Generator, nuclear: Array, tissue: Array, style: Style) -> NDArray[np.uint8]:
    """What light leaves of two stains ``(row, column)``: ``(row, column, 3)`` of bytes."""
    tissue = style.tissue_strength * tissue
    nuclear = blurred(nuclear, style.blur)
    density = nuclear[..., None] * _varied(rng, style.nuclear)
    density += tissue[..., None] * _varied(rng, style.tissue)
    return to_bytes(rng, np.asarray(style.white, dtype=np.float32) * np.exp(-density), style.noise)


def to_bytes(rng: np.random.Generator, colour: Array, noise: float) -> NDArray[np.uint8]:
    """Colours from 0 to 1 with a camera's noise, as bytes."""
    colour = colour + np.float32(noise) * rng.standard_normal(colour.shape, dtype=np.float32)
    return np.clip(np.rint(colour * 255), 0, 255).astype(np.uint8)


def _varied(rng: np.random.Generator, colour: Colour) -> Array:
    """Staining differs a little from image to image."""
    return np.asarray(np.asarray(colour) * rng.normal(1, 0.06, 3) * rng.normal(1, 0.06), dtype=np.float32)


def find_places(
    rng: np.random.Generator, axes: tuple[Array, ...], radii: Array, gap: float = 0.85
) -> list[tuple[float, float]]:
    """Middles of nuclei that may touch but hardly overlap; those that find no room are left out."""
    half = [float(np.abs(axis).max()) for axis in axes]
    places: list[tuple[float, float]] = []
    tries = rng.uniform(-1, 1, (len(radii), 20, 2)) * half
    for candidates in tries:
        for row, column in candidates:
            radius = radii[len(places)]
            if all(np.hypot(row - y, column - x) > gap * (radius + radii[i]) for i, (y, x) in enumerate(places)):
                places.append((float(row), float(column)))
                break
    return places


def draw_nuclei(rng: np.random.Generator, axes: tuple[Array, ...], style: Style) -> tuple[Array, Array]:
    """Mask and nuclear stain ``(row, column)`` of the nuclei in focus."""
    size = axes[0].shape
    count = max(3, round(style.crowd * rng.uniform(7, 15) * axes[0].size / 4096))
    radii = (style.zoom * rng.uniform(3.5, 7.0, count)).astype(np.float32)
    mask, stain = np.zeros(size, bool), np.zeros(size, np.float32)
    chromatin = 1 + style.chromatin * smooth_noise(rng, size, 1.0)
    for radius, place in zip(radii, find_places(rng, axes, radii), strict=False):
        stretch = rng.uniform(1.0, 1.35)
        level, angle = ellipse(axes, place, (radius * stretch, radius / stretch), rng.uniform(0, np.pi))
        level = level / wobble(rng, angle, 0.18)
        body = soft_step(level, 0.12) * (1 - style.hollow * soft_step(level / 0.75, 0.25))
        stain = np.maximum(stain, np.float32(rng.uniform(0.6, 1.2)) * body)
        mask |= level < 1
    return mask, np.asarray(style.nuclear_strength * stain * np.clip(chromatin, 0.2, None), dtype=np.float32)


def draw_haze(rng: np.random.Generator, axes: tuple[Array, ...], style: Style) -> Array:
    """Nuclear stain ``(row, column)`` that is no nucleus: nuclei out of focus, debris, uneven staining."""
    size = axes[0].shape
    strength = style.nuclear_strength * style.haze
    stain = np.float32(0.25 * strength) * np.clip(1 + 0.5 * smooth_noise(rng, size, 5), 0, None)
    half = [float(np.abs(axis).max()) for axis in axes]
    for _ in range(max(1, round(3 * axes[0].size / 4096))):
        level, _angle = ellipse(axes, tuple(rng.uniform(-1, 1, 2) * half), tuple(rng.uniform(4, 7, 2)))
        stain += np.float32(strength * rng.uniform(0.5, 1.0)) * np.exp(-np.square(level))
    debris = smooth_noise(rng, size, 0.8) > 3.0
    return np.asarray(stain + style.nuclear_strength * 0.9 * debris, dtype=np.float32)


def draw_tissue(rng: np.random.Generator, axes: tuple[Array, ...]) -> Array:
    """The other stain ``(row, column)``: cytoplasm, fibres, red cells, and holes where there is no tissue."""
    size = axes[0].shape
    half = [float(np.abs(axis).max()) for axis in axes]
    stain = np.clip(0.8 + 0.25 * smooth_noise(rng, size, 3) + 0.15 * smooth_noise(rng, size, 0.7), 0.05, None)
    turn = rng.uniform(0, np.pi)
    across = np.cos(turn) * axes[0] + np.sin(turn) * axes[1] + 2 * smooth_noise(rng, size, 8)
    fibres = np.clip(np.sin(across * rng.uniform(0.5, 0.9)), 0.6, 1) - 0.6
    stain += fibres * np.clip(smooth_noise(rng, size, 10), 0, None)
    for _ in range(round(rng.uniform(0, 5) * axes[0].size / 4096)):
        level, _angle = ellipse(axes, tuple(rng.uniform(-1, 1, 2) * half), (3.2, 3.2 * rng.uniform(0.8, 1)))
        stain += np.float32(rng.uniform(0.7, 1.3)) * soft_step(level, 0.15)
    hole = soft_step(2.2 - 1.2 * smooth_noise(rng, size, 7), 0.2)
    return np.asarray(stain * (1 - 0.9 * hole), dtype=np.float32)
