"""Bladder cancer in T2-weighted MRI, volumes cut into slices: a tumour of varying size and place on the bladder's wall.

Anatomy is a map of tissues, the same at all sites; a site is a centre's scanner. Tumours stand out from dark wall and
bright urine, but the organ behind the bladder (uterus or prostate) is as bright as they are and in no mask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.phantoms.drawing import Array, Drawing, ellipse, smooth_noise, wobble
from polyclinic.data.phantoms.mri import Style, Tissue, field_of_view, scan

FAT, MUSCLE, BONE, ORGAN, WALL, URINE, TUMOUR = range(7)
PIXEL, SLICES = 1.8, 4  # mm in plane, at a width of 64; slices of a volume

STYLES = {
    "centre-1": Style(
        (0.60, 0.22, 0.35, 0.50, 0.20, 0.95, 0.48),
        texture=0.08, shading=0.10, blur=0.5, noise=0.03, scale=800.0, spacing=(1.8, 5.0),
    ),
    # Fat is as bright as urine.
    "centre-2": Style(
        (0.92, 0.18, 0.50, 0.42, 0.26, 0.85, 0.40),
        texture=0.08, shading=0.15, blur=0.7, noise=0.04, scale=300.0, spacing=(1.7, 4.0),
    ),
    # Fat is suppressed, and tumours are nearly as dark as the wall.
    "centre-3": Style(
        (0.20, 0.28, 0.15, 0.52, 0.30, 0.80, 0.44),
        texture=0.10, shading=0.25, blur=0.6, noise=0.05, gamma=1.2, scale=1400.0, spacing=(2.0, 6.0),
    ),
    # The wall is hard to see behind the blur, and tumours are as bright as fat.
    "centre-4": Style(
        (0.50, 0.30, 0.42, 0.60, 0.24, 0.90, 0.50),
        texture=0.08, shading=0.20, blur=0.8, noise=0.04, gamma=0.9, scale=500.0, spacing=(1.9, 5.0),
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one volume in a centre's style: image ``(x, y, z)`` from left, back and foot."""
    style = STYLES[site]
    axes, spacing = field_of_view(size, style, PIXEL, SLICES)
    tissue = _anatomy(rng, axes)
    return Drawing(scan(rng, tissue, style), (tissue == TUMOUR).astype(np.uint8), spacing)


def _anatomy(rng: np.random.Generator, axes: tuple[Array, ...]) -> Tissue:
    """The tissue of every voxel ``(x, y, z)``."""
    x, y, z = axes
    plane, size = (x, y), x.shape
    unit = size[0] / 64
    middle = (rng.normal(0, 0.05), 0.12 + rng.normal(0, 0.05))
    fill = rng.uniform(0.85, 1.15)  # how full it is
    radii = (0.58 * fill * rng.normal(1, 0.06), 0.46 * fill * rng.normal(1, 0.08))
    bladder, angle = ellipse(plane, middle, radii, rng.normal(0, 0.1))
    narrow = 1 - 0.12 * np.square(z - np.float32(rng.normal(0, 0.3)))  # towards roof and neck
    bladder = bladder / (wobble(rng, angle + 0.2 * z, 0.10) * narrow)
    wall = 1 + rng.uniform(0.10, 0.16) / fill
    organ, turn = ellipse(plane, (middle[0] + rng.normal(0, 0.06), middle[1] - radii[1] - 0.36), (0.40, 0.27))
    bumps = smooth_noise(rng, size, (5 * unit, 5 * unit, 1.0))
    hip, _ = ellipse((np.abs(x), y), (1.0, -0.05), (0.26, 0.34))

    tissue = np.full(size, FAT, np.uint8)
    tissue[(np.abs(x) + 0.06 * bumps > 0.74) | (y + 0.1 * np.abs(x) > 0.84)] = MUSCLE
    tissue[hip < 1] = BONE
    tissue[organ / wobble(rng, turn, 0.08) < 1] = ORGAN
    tissue[bladder < wall] = WALL
    tissue[bladder < 1.0] = URINE
    tissue[_tumour(rng, axes, middle, radii) & (bladder < wall + rng.uniform(0, 0.06))] = TUMOUR
    return tissue


def _tumour(
    rng: np.random.Generator, axes: tuple[Array, ...], middle: tuple[float, float], radii: tuple[float, float]
) -> NDArray[np.bool_]:
    """A lump ``(x, y, z)`` that grows from the wall inwards, flat or round, with lobes."""
    x, y, z = axes
    unit = x.shape[0] / 64
    way = rng.uniform(0, 2 * np.pi)
    place = tuple(
        centre + 0.88 * radius * turn
        for centre, radius, turn in zip(middle, radii, (np.cos(way), np.sin(way)), strict=True)
    )
    reach = rng.uniform(0.16, 0.38)
    centre, deep = rng.uniform(-0.5, 0.5), rng.uniform(1.4, 2.2)
    level, angle = ellipse((x, y), place, (reach * rng.uniform(0.65, 1.0), reach), way)
    level = level / wobble(rng, angle, 0.25, (2, 3, 5)) + 0.06 * smooth_noise(
        rng, x.shape, (1.5 * unit, 1.5 * unit, 0.7)
    )
    return np.asarray(np.square(level) + np.square((z - np.float32(centre)) / np.float32(deep)) < 1)
