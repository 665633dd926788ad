"""Brain MRI, 3D with four channels (FLAIR, T1, T1 with contrast agent, T2): an irregular tumour with its oedema.

Anatomy is a map of tissues; a site is a table of their intensities in each channel plus shading, blur, noise and scale.
Old white-matter lesions, bright in FLAIR and in no mask, keep the task from being a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.phantoms.drawing import (
    Array,
    Drawing,
    bias_field,
    blurred,
    coordinates,
    ellipse,
    rician,
    smooth_noise,
)

AIR, SKULL, FLUID, GREY, WHITE, OLD, OEDEMA, RIM, CORE = range(9)

# Rows: FLAIR, T1, T1 with contrast agent, T2; columns: the tissues above.
TYPICAL = (
    (0.00, 0.45, 0.10, 0.52, 0.42, 0.85, 0.88, 0.70, 0.55),
    (0.00, 0.60, 0.12, 0.50, 0.70, 0.50, 0.42, 0.45, 0.30),
    (0.00, 0.65, 0.12, 0.50, 0.68, 0.50, 0.42, 0.98, 0.30),
    (0.00, 0.40, 0.98, 0.60, 0.45, 0.72, 0.82, 0.70, 0.85),
)


@dataclass(frozen=True)
class Style:
    """How one site's scanner sees: what is added to the typical table, and the quality of its images."""

    change: tuple[tuple[int, int, float], ...] = ()  # channel, tissue, difference
    skull: bool = True
    texture: float = 0.08
    shading: float = 0.08
    blur: float = 0.3
    noise: float = 0.03
    gamma: float = 1.0
    scale: float = 1000.0


STYLES = {
    "hospital-a": Style(),
    # Fluid is hardly suppressed in FLAIR, T2 shows little of the oedema, the skull is stripped.
    "hospital-b": Style(
        change=((0, FLUID, 0.50), (0, OEDEMA, -0.12), (3, WHITE, 0.15), (3, GREY, 0.12), (3, OEDEMA, -0.05)),
        skull=False, shading=0.12, blur=0.5, noise=0.03, gamma=1.3, scale=300.0,
    ),
    # T1 is closer to proton density: white matter is darker, lesions brighter, and little contrast agent is taken up.
    "hospital-c": Style(
        change=(
            (0, WHITE, 0.15), (0, GREY, 0.10), (1, WHITE, -0.20), (1, OEDEMA, 0.22), (1, RIM, 0.18), (1, CORE, 0.28),
            (2, WHITE, -0.15), (2, OEDEMA, 0.12), (2, RIM, -0.25), (2, CORE, 0.20), (3, OEDEMA, -0.08),
        ),
        shading=0.12, blur=0.4, noise=0.04, gamma=0.8, scale=2200.0,
    ),
}  # fmt: skip


def draw(rng: np.random.Generator, site: str, size: tuple[int, ...]) -> Drawing:
    """Draw one head in a site's style: image ``(x, y, z, 4)`` from left, back and foot."""
    style = STYLES[site]
    tissue = _anatomy(rng, coordinates(size))
    table = np.array(TYPICAL, dtype=np.float32)
    for channel, kind, difference in style.change:
        table[channel, kind] += np.float32(difference)
    table *= rng.normal(1, 0.05, table.shape).astype(np.float32)
    if not style.skull:
        table[:, SKULL] = 0
    channels = [_scan(rng, row[tissue], style) for row in table]
    image = np.rint(np.clip(np.stack(channels, axis=-1) * style.scale, 0, 32000)).astype(np.int16)
    side = tuple(160 / length for length in size)
    return Drawing(image, (tissue >= OEDEMA).astype(np.uint8), side)


def _scan(rng: np.random.Generator, clean: Array, style: Style) -> Array:
    """One channel ``(x, y, z)`` with texture, shading, blur and noise; air stays dark."""
    size = clean.shape
    image = clean * (1 + style.texture * smooth_noise(rng, size, 1.0)) * bias_field(rng, size, style.shading)
    image = blurred(image, style.blur)
    return rician(rng, np.clip(image, 0, None), style.noise) ** np.float32(style.gamma)


def _anatomy(rng: np.random.Generator, axes: tuple[Array, ...]) -> NDArray[np.uint8]:
    """The tissue of every voxel ``(x, y, z)``."""
    x, y, z = axes
    size = x.shape
    unit = max(size) / 32
    radii = (rng.uniform(0.70, 0.78), rng.uniform(0.82, 0.90), rng.uniform(0.76, 0.84))
    head, _ = ellipse(axes, (0.0, 0.0, 0.0), radii, rng.normal(0, 0.06))
    folds = smooth_noise(rng, size, 1.6 * unit)
    ventricle, _ = ellipse((np.abs(x), y, z), (0.13, 0.0, 0.08), (0.10, 0.36, 0.16), rng.normal(0.2, 0.05))

    tissue = np.full(size, WHITE, np.uint8)
    tissue[head + 0.06 * folds > 0.74] = GREY
    tissue[ventricle + 0.12 * folds < 1] = FLUID
    brain = head < 0.92
    tissue[(smooth_noise(rng, size, 1.1 * unit) > 2.8) & (tissue == WHITE)] = OLD
    level = _lesion(rng, axes, radii)
    grows = brain & (level < 1)
    tissue[grows] = OEDEMA
    core = rng.uniform(0.45, 0.7)
    tissue[grows & (level < core)] = RIM
    tissue[grows & (level < 0.6 * core)] = CORE
    tissue[head >= 0.92] = FLUID
    tissue[head >= 1.0] = SKULL
    tissue[head >= 1.13] = AIR
    return tissue


def _lesion(rng: np.random.Generator, axes: tuple[Array, ...], radii: tuple[float, ...]) -> Array:
    """Level ``(x, y, z)`` of an irregular lesion, below 1 inside, always within the brain."""
    unit = max(axes[0].shape) / 32
    direction = rng.normal(size=3)
    middle = direction / np.linalg.norm(direction) * rng.uniform(0.25, 0.55) * np.asarray(radii)
    level, _ = ellipse(axes, tuple(middle), tuple(rng.uniform(0.28, 0.45, 3)), rng.uniform(0, np.pi))
    return np.asarray(level + 0.18 * smooth_noise(rng, axes[0].shape, 2.2 * unit), dtype=np.float32)
