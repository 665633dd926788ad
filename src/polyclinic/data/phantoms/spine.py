"""Spinal-cord MRI, axial volumes cut into slices: the cord in its canal, grey matter a butterfly inside.

Anatomy is a map of tissues, the same at all sites; a site is a scanner and its protocol. Fluid around the cord is
bright at most sites and dark at one; how much brighter grey matter is than white differs too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.phantoms.drawing import Array, Drawing, ellipse, smooth_noise, wobble
from polyclinic.data.phantoms.mri import Style, Tissue, field_of_view, scan

MUSCLE, FAT, BONE, FLUID, WHITE, GREY = range(6)
PIXEL, SLICES = 0.5, 4  # mm in plane, at a width of 64; slices of a volume

STYLES = {
    "site-1": Style(
        (0.45, 0.60, 0.25, 0.95, 0.48, 0.72),
        texture=0.06, shading=0.10, blur=0.5, noise=0.03, scale=700.0, spacing=(0.50, 5.0),
    ),
    # Fluid is hardly brighter than grey matter; blurred.
    "site-2": Style(
        (0.30, 0.80, 0.15, 0.70, 0.42, 0.62),
        texture=0.06, shading=0.15, blur=0.9, noise=0.03, scale=300.0, spacing=(0.52, 5.0),
    ),
    # Fluid is dark, bone and muscle are bright: the outline of the cord is the other way round.
    "site-3": Style(
        (0.70, 0.40, 0.55, 0.22, 0.55, 0.76),
        texture=0.08, shading=0.25, blur=0.6, noise=0.05, gamma=0.8, scale=1500.0, spacing=(0.46, 2.5),
    ),
    # Little contrast in the cord, and noise.
    "site-4": Style(
        (0.55, 0.95, 0.40, 1.00, 0.36, 0.50),
        texture=0.06, shading=0.20, blur=0.4, noise=0.05, gamma=1.2, scale=450.0, spacing=(0.55, 5.0),
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one volume in a site's style: image ``(x, y, z)`` from left, back and foot."""
    style = STYLES[site]
    axes, spacing = field_of_view(size, style, PIXEL, SLICES)
    tissue = _anatomy(rng, axes)
    mask = np.select([tissue == WHITE, tissue == GREY], [np.uint8(1), np.uint8(2)], np.uint8(0))
    return Drawing(scan(rng, tissue, style), np.asarray(mask, dtype=np.uint8), spacing)


def _anatomy(rng: np.random.Generator, axes: tuple[Array, ...]) -> Tissue:
    """The tissue of every voxel ``(x, y, z)``."""
    x, y, z = axes
    size = x.shape
    unit = size[0] / 64
    # The cord wanders from slice to slice; everything else follows it.
    shift, lift, slope = rng.normal(0, (0.08, 0.06, 0.04)).astype(np.float32)
    right, front = _turned(x - shift - slope * z, y - lift, rng.normal(0, 0.10))
    grow = rng.uniform(0.88, 1.15)
    wide, high = 0.46 * grow * rng.normal(1, 0.05), 0.36 * grow * rng.normal(1, 0.05)
    cord, angle = ellipse((right, front), (0.0, 0.0), (wide, high))
    cord = cord / wobble(rng, angle, 0.04)
    canal, angle = ellipse((right, front), (0.0, rng.normal(0, 0.02)), (1.42 * wide, 1.5 * high))
    canal = canal / wobble(rng, angle, 0.06)
    body, _ = ellipse((right, front), (0.0, 1.15 + rng.normal(0, 0.04)), (0.95, 0.62))
    bumps = smooth_noise(rng, size, (4 * unit, 4 * unit, 1.0))

    tissue = np.full(size, MUSCLE, np.uint8)
    tissue[(front < -0.75 + 0.08 * bumps) & (np.abs(right) < 0.45)] = FAT
    tissue[(canal < 1.30 + 0.04 * bumps) | (body + 0.03 * bumps < 1)] = BONE
    tissue[canal < 1.0] = FLUID
    inside = cord < 1.0
    tissue[inside] = WHITE
    tissue[inside & (cord < 0.92) & _butterfly(rng, right / np.float32(wide), front / np.float32(high), z)] = GREY
    return tissue


def _butterfly(rng: np.random.Generator, right: Array, front: Array, z: Array) -> NDArray[np.bool_]:
    """Where grey matter is, in units of the cord's radii: two horns on each side and a bridge between them."""
    side = np.abs(right + np.float32(rng.normal(0, 0.02)))
    thick = rng.uniform(0.85, 1.15) * (1 + np.float32(rng.normal(0, 0.15)) * z)
    lean, out = rng.normal(0.35, 0.08), rng.normal(0.34, 0.02)
    anterior, _ = ellipse((side, front), (out, 0.28), (0.17, 0.30), -lean)
    posterior, _ = ellipse((side, front), (out + 0.02, -0.36), (0.10, 0.44), lean)
    bridge = np.maximum(side / np.float32(out), np.abs(front) / np.float32(0.10))
    return np.asarray(np.minimum(np.minimum(anterior, posterior), bridge) < thick)


def _turned(right: Array, front: Array, angle: float) -> tuple[Array, Array]:
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return np.asarray(cos * right + sin * front), np.asarray(cos * front - sin * right)
