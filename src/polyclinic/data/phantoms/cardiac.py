"""Cardiac MRI, short-axis volumes cut into slices: the ventricles from apex to base, in systole or diastole.

Anatomy is a map of tissues, the same at all sites; a site is a vendor's scanner. Blood in the aorta is as bright as in
the ventricles, and papillary muscles are as dark as the wall but belong to the left ventricle.
"""

from __future__ import annotations

import numpy as np

from polyclinic.data.phantoms.drawing import Array, Drawing, ellipse, smooth_noise, wobble
from polyclinic.data.phantoms.mri import Style, Tissue, field_of_view, scan

LUNG, FAT, MUSCLE, LIVER, BLOOD, WALL = range(6)
LEFT, MYOCARDIUM, RIGHT = 1, 2, 3
PIXEL, SLICES = 2.2, 4  # mm in plane, at a width of 64; slices of a volume

STYLES = {
    "vendor-a": Style(
        (0.08, 0.80, 0.35, 0.45, 0.90, 0.32),
        texture=0.08, shading=0.10, blur=0.5, noise=0.03, scale=900.0, spacing=(2.2, 9.0),
    ),
    # Fat outshines blood; sharp and noisy.
    "vendor-b": Style(
        (0.04, 1.00, 0.30, 0.32, 0.66, 0.24),
        texture=0.08, shading=0.15, blur=0.3, noise=0.06, scale=400.0, spacing=(2.0, 10.0),
    ),
    # Little contrast between blood and wall, a strong coil, soft.
    "vendor-c": Style(
        (0.15, 0.60, 0.50, 0.62, 0.80, 0.48),
        texture=0.10, shading=0.30, blur=0.9, noise=0.04, gamma=0.8, scale=1600.0, spacing=(2.4, 8.0),
    ),
    # Fat is suppressed; dark on the whole.
    "vendor-d": Style(
        (0.12, 0.36, 0.30, 0.26, 0.80, 0.42),
        texture=0.10, shading=0.20, blur=0.7, noise=0.05, gamma=1.1, scale=250.0, spacing=(2.3, 8.0),
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one volume in a vendor's style: image ``(x, y, z)`` from left, back and apex."""
    style = STYLES[site]
    axes, spacing = field_of_view(size, style, PIXEL, SLICES)
    tissue, mask = _anatomy(rng, axes)
    return Drawing(scan(rng, tissue, style), mask, spacing)


def _anatomy(rng: np.random.Generator, axes: tuple[Array, ...]) -> tuple[Tissue, Tissue]:
    """The tissue and the class of every voxel, both ``(x, y, z)``."""
    x, y, z = axes
    size, unit = x.shape, x.shape[0] / 64
    contracted, grow = rng.uniform(0, 1), rng.uniform(0.9, 1.15)
    middle = (0.12 + rng.normal(0, 0.06), rng.normal(0, 0.06))
    # Around the left ventricle's axis, in units that shrink towards the apex.
    narrow = np.float32(grow) * (1 - np.float32(0.17) * np.square(np.clip(0.75 - z, 0, None)))
    heart = ((x - np.float32(middle[0])) / narrow, (y - np.float32(middle[1])) / narrow)
    inner, thick = 0.34 - 0.14 * contracted, 0.11 + 0.07 * contracted
    level, angle = ellipse(heart, (0.0, 0.0), (1.0, 1.0))
    level = level / wobble(rng, angle, 0.05)
    septum = rng.normal(np.pi, 0.2)
    radii = (0.34 - 0.06 * contracted, 0.42 - 0.08 * contracted)
    right, angle = ellipse(heart, _polar(0.38, septum), radii, septum - np.pi + rng.normal(0, 0.15))
    right = right / (wobble(rng, angle, 0.10) * np.clip(0.95 + 0.15 * z, None, 1.0))
    ways = septum + np.pi + np.array([-0.9, 0.9]) + rng.normal(0, 0.15, 2)
    papillary = [ellipse(heart, _polar(0.6 * inner, way), (0.24 * inner, 0.18 * inner), way)[0] for way in ways]
    grain = smooth_noise(rng, size, (unit, unit, 0.5))

    tissue = _chest(rng, (x, y), heart)
    left, outer = level < inner, level < inner + thick
    # The right ventricle's own wall is thin and in no mask.
    tissue[(right < 1.10) & ~outer] = WALL
    tissue[(right < 1.0) & ~outer] = BLOOD
    tissue[outer] = WALL
    tissue[left] = BLOOD
    tissue[left & (np.minimum(*papillary) + 0.1 * grain < 1)] = WALL
    mask = np.zeros(size, np.uint8)
    mask[right < 1.0] = RIGHT
    mask[outer] = MYOCARDIUM
    mask[left] = LEFT
    return tissue, mask


def _chest(rng: np.random.Generator, plane: tuple[Array, Array], heart: tuple[Array, Array]) -> Tissue:
    """What lies around the ventricles ``(x, y, z)``: lungs, fat, chest wall, liver and the aorta."""
    x, y = plane
    unit = x.shape[0] / 64
    bumps = smooth_noise(rng, x.shape, (6 * unit, 6 * unit, 1.0))
    sac, angle = ellipse(heart, (-0.17, 0.0), (0.76, 0.58), rng.normal(0, 0.2))
    aorta, _ = ellipse(plane, (0.62 + rng.normal(0, 0.05), -0.66 + rng.normal(0, 0.05)), (0.15, 0.15))
    tissue = np.full(x.shape, LUNG, np.uint8)
    tissue[sac / wobble(rng, angle, 0.10) < 1] = FAT
    tissue[y - 0.25 * x + 0.05 * bumps < -0.62 + rng.normal(0, 0.05)] = LIVER
    tissue[y + 0.2 * x + 0.04 * bumps > 0.72 + rng.normal(0, 0.04)] = FAT
    tissue[y + 0.2 * x + 0.06 * bumps > 0.86] = MUSCLE
    tissue[aorta < 1.15] = WALL
    tissue[aorta < 1.0] = BLOOD
    return tissue


def _polar(radius: float, angle: float) -> tuple[float, float]:
    return radius * float(np.cos(angle)), radius * float(np.sin(angle))
