"""Pelvic MRI, grey volumes cut into slices: the prostate between bladder, rectum and pelvic muscles.

Anatomy is a map of tissues in a field of view of fixed size in mm; a site is a table of tissue intensities plus the
coil's shading, the resolution, the noise and the scale of the numbers.
"""

from __future__ import annotations

import numpy as np

from polyclinic.data.phantoms.drawing import Array, Drawing, ellipse, smooth_noise, wobble
from polyclinic.data.phantoms.mri import Style, Tissue, field_of_view, scan

FAT, MUSCLE, PERIPHERAL, CENTRAL, BLADDER, WALL, LUMEN, VESICLE, CAPSULE = range(9)


STYLES = {
    "hospital-a": Style((0.60, 0.22, 0.80, 0.48, 0.95, 0.40, 0.10, 0.78, 0.30)),
    "hospital-b": Style(
        (0.70, 0.25, 0.66, 0.46, 0.75, 0.42, 0.08, 0.64, 0.32),
        texture=0.08, shading=0.15, coil=0.0, blur=0.6, noise=0.04, gamma=1.0, scale=300.0, spacing=(1.1, 3.3),
    ),
    "hospital-c": Style(
        (0.52, 0.25, 0.80, 0.50, 0.90, 0.42, 0.05, 0.75, 0.30),
        texture=0.10, shading=0.10, coil=1.6, blur=0.4, noise=0.04, gamma=1.0, scale=1500.0, spacing=(0.9, 3.0),
    ),
    "hospital-d": Style(
        (0.45, 0.28, 0.72, 0.60, 0.95, 0.42, 0.15, 0.66, 0.30),
        texture=0.10, shading=0.15, coil=0.0, blur=1.0, noise=0.05, gamma=0.8, scale=500.0, spacing=(1.0, 3.6),
    ),
    "hospital-e": Style(
        (0.78, 0.28, 0.56, 0.42, 0.60, 0.40, 0.10, 0.55, 0.25),
        texture=0.08, shading=0.10, coil=0.0, blur=0.5, noise=0.04, gamma=1.0, scale=1100.0, spacing=(1.0, 2.5),
    ),
    "hospital-f": Style(
        (0.62, 0.18, 0.66, 0.40, 0.90, 0.32, 0.45, 0.62, 0.22),
        texture=0.10, shading=0.15, coil=0.4, blur=0.7, noise=0.05, gamma=1.0, scale=240.0, spacing=(0.9, 4.0),
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one volume in a site's style: image ``(x, y, z)`` from left, back and foot, with its true spacing."""
    style = STYLES[site]
    axes, spacing = field_of_view(size, style)
    tissue, rectum = _anatomy(rng, axes)
    image = scan(rng, tissue, style, 1 + style.coil * np.exp(-np.square(rectum / 2.2)))
    mask = (tissue == PERIPHERAL) | (tissue == CENTRAL)
    return Drawing(image, mask.astype(np.uint8), spacing)


def _anatomy(rng: np.random.Generator, axes: tuple[Array, ...]) -> tuple[Tissue, Array]:
    """The tissue of every voxel, and the level of the rectum's ellipse, both ``(x, y, z)``."""
    x, y, z = axes
    shift, lift = rng.normal(0, 0.05, 2)
    grow = rng.uniform(0.85, 1.2)
    middle = (shift, 0.08 + lift, rng.normal(-0.05, 0.06))
    radii = (0.52 * grow * rng.normal(1, 0.06), 0.42 * grow * rng.normal(1, 0.06), rng.uniform(0.72, 0.88))
    level, angle = ellipse(axes, middle, radii)
    level = level / wobble(rng, angle + 0.4 * z, 0.10)
    inner, angle = ellipse(axes, (middle[0], middle[1] + 0.10, middle[2] + 0.1), tuple(0.68 * r for r in radii))
    inner = inner / wobble(rng, angle, 0.12)
    rectum, angle = ellipse((x, y), (shift + rng.normal(0, 0.05), middle[1] - radii[1] - 0.28), (0.30, 0.24))
    rectum = rectum / wobble(rng, angle, 0.10)
    bladder, _ = ellipse(axes, (shift, middle[1] + 0.25, 1.1), (0.62, 0.50, rng.uniform(0.35, 0.60)))
    side = np.abs(x - np.float32(shift)) + 0.15 * y + 0.04 * smooth_noise(rng, x.shape, (5, 5, 2))
    vesicle, _ = ellipse((np.abs(x - np.float32(shift)), y, z), (0.25, middle[1] - 0.30, 0.9), (0.26, 0.11, 0.30))

    from scipy import ndimage  # here, because a demo that was drawn before is only read

    # Without the opening, slivers of a voxel or two would stay between the gland's top and the bladder.
    width = 1 + 2 * max(1, x.shape[0] // 32)
    gland = ndimage.binary_opening((level < 1) & (rectum >= 1) & (bladder >= 1), np.ones((width, width, 1)))
    tissue = np.full(x.shape, FAT, np.uint8)
    tissue[(side > rng.uniform(0.66, 0.74)) | (y > 0.82 + 0.1 * np.cos(3 * x))] = MUSCLE
    tissue[vesicle < 1] = VESICLE
    tissue[rectum < 1] = WALL
    tissue[rectum < rng.uniform(0.55, 0.75)] = LUMEN
    tissue[bladder < 1.12] = WALL
    tissue[bladder < 1] = BLADDER
    tissue[(level < 1.06 + 0.04 * smooth_noise(rng, x.shape, (4, 4, 1))) & (tissue == FAT)] = CAPSULE
    tissue[gland] = PERIPHERAL
    tissue[gland & (inner < 1)] = CENTRAL
    return tissue, rectum
