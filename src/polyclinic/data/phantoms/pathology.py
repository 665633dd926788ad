"""Sixteen sites of pathology in four groups, as PathFL has (Medical Image Analysis 2025, Table 1), 2D in colour.

``source-1`` to ``-7`` stain differently and mark nuclei, the third and fifth whole glands; the modalities are cytology,
fluorescence and histology of nuclei; organs and scanners mark tumour regions, which differ in architecture between
organs, and in colour, focus and noise between scanners. Across groups, and between the sources, what is marked changes
too: nuclei lie in glands and tumours without being marked there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

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
from polyclinic.data.phantoms.nuclei import (
    Style,
    draw_haze,
    draw_nuclei,
    draw_tissue,
    find_places,
    photograph,
    pixels,
    to_bytes,
)

Size = tuple[int, ...]
Stains = tuple[Array, Array, Array]  # mask, nuclear stain and the other stain, each (row, column)


@dataclass(frozen=True)
class Tumour:
    """How a tumour grows. Lengths are pixels of an image that is 64 wide."""

    nests: float = 8.0  # size of its regions
    cells: float = 0.8  # size of its cells
    crowd: float = 0.2  # how densely they lie
    lumens: float = 3.5  # deviations above which noise is an empty lumen: the lower, the more
    fibres: float = 0.5  # strength of the scar tissue around it


@dataclass(frozen=True)
class Glands:
    """How glands look. Lengths are pixels of an image that is 64 wide."""

    radius: tuple[float, float] = (9.0, 14.0)
    wobbly: float = 0.15
    lumen: float = 0.45  # share of the radius
    count: int = 6


def draw(rng: np.random.Generator, site: str, size: Size) -> Drawing:
    """Draw one field of view of a site: image ``(row, column, 3)`` of bytes."""
    return SITES[site](rng, size)


def _stained(rng: np.random.Generator, size: Size, shape: Callable[..., Stains], style: Style) -> Drawing:
    mask, nuclear, tissue = shape(rng, size, style)
    return Drawing(photograph(rng, nuclear, tissue, style), mask.astype(np.uint8), (1.0, 1.0))


def _fluorescent(rng: np.random.Generator, size: Size, style: Style) -> Drawing:
    """Bright nuclei on black, with the glow of those out of focus; ``style.nuclear`` is the colour of the dye."""
    axes = pixels(size)
    mask, stain = draw_nuclei(rng, axes, style)
    light = blurred(stain + draw_haze(rng, axes, style), style.blur)
    light = 1 - np.exp(-light * np.float32(rng.normal(1, 0.1)))
    colour = light[..., None] * np.asarray(style.nuclear, dtype=np.float32)
    return Drawing(to_bytes(rng, colour, style.noise), mask.astype(np.uint8), (1.0, 1.0))


def _nuclei(rng: np.random.Generator, size: Size, style: Style) -> Stains:
    axes = pixels(size)
    mask, nuclear = draw_nuclei(rng, axes, style)
    tissue = draw_tissue(rng, axes)
    return mask, nuclear + draw_haze(rng, axes, style), tissue


def _smear(rng: np.random.Generator, size: Size, style: Style) -> Stains:
    """Cells on glass: nothing but cytoplasm around the nuclei, and some mucus."""
    axes = pixels(size)
    mask, nuclear = draw_nuclei(rng, axes, style)
    cytoplasm = np.clip(2.5 * blurred(mask.astype(np.float32), 4), 0, 1)
    mucus = 0.3 * np.clip(smooth_noise(rng, size, 6), 0, None)
    grain = 1 + 0.2 * smooth_noise(rng, size, 0.8)
    tissue = np.asarray((cytoplasm + mucus) * grain, dtype=np.float32)
    return mask, nuclear + style.haze * style.nuclear_strength * mucus, tissue


def _glands(rng: np.random.Generator, size: Size, style: Style, glands: Glands) -> Stains:
    """Rings of nuclei around a lumen, whole in the mask, between spindle-shaped nuclei that no mask holds."""
    unit = max(size) / 64
    axes = tuple(axis * np.float32(length / 2 / unit) for axis, length in zip(coordinates(size), size, strict=True))
    mask, wall, lumen = (np.zeros(size, np.float32) for _ in range(3))
    palisade = np.zeros(size, np.float32)
    radii = rng.uniform(*glands.radius, glands.count).astype(np.float32)
    for radius, place in zip(radii, find_places(rng, axes, radii, 1.05), strict=False):
        stretch = rng.uniform(1.0, 1.3)
        level, angle = ellipse(axes, place, (radius * stretch, radius / stretch), rng.uniform(0, np.pi))
        level = level / wobble(rng, angle, glands.wobbly)
        # About one nucleus for every three pixels of the outline.
        beads = 0.6 + 0.4 * np.cos(np.round(2 * radius) * angle)
        palisade = np.maximum(palisade, beads * np.exp(-np.square((level - 0.83) / 0.12)))
        mask, wall = np.maximum(mask, level < 1), np.maximum(wall, soft_step(level, 0.06))
        lumen = np.maximum(lumen, soft_step(level / glands.lumen, 0.15))
    upright = int(rng.integers(2))
    cells = smooth_noise(rng, size, ((0.6 + upright) * unit, (1.6 - upright) * unit)) > 1.6
    grain = np.clip(1 + style.chromatin * smooth_noise(rng, size, 0.8), 0.2, None)
    nuclear = (palisade + 0.12 * wall) * (1 - lumen) + 0.7 * cells * (1 - wall)
    tissue = draw_tissue(rng, pixels(size)) * (1 - 0.45 * wall) * (1 - 0.95 * lumen)
    return mask, np.asarray(style.nuclear_strength * grain * nuclear, dtype=np.float32), tissue


def _tumour(rng: np.random.Generator, size: Size, style: Style, tumour: Tumour) -> Stains:
    """Nests of crowded cells, whole in the mask with their lumens; around them scar tissue and lymphocytes."""
    unit = max(size) / 64
    level = smooth_noise(rng, size, tumour.nests * unit)
    mask = (level > np.quantile(level, rng.uniform(0.5, 0.75))).astype(np.float32)
    inside = blurred(mask, 0.7 * unit)
    lumen = inside * (smooth_noise(rng, size, 2 * unit) > tumour.lumens)
    cells = soft_step(1 + tumour.crowd - smooth_noise(rng, size, tumour.cells * unit), 0.5)
    small = smooth_noise(rng, size, 0.5 * unit)
    follicle = np.clip(smooth_noise(rng, size, 5 * unit) - 1.2, 0, 1)
    others = (small > 2.0) + follicle * (small > 0.4)
    nuclear = inside * (0.25 + 0.75 * cells) * (1 - lumen) + (1 - inside) * 0.9 * others
    turn = rng.uniform(0, np.pi)
    axes = coordinates(size)
    across = 32 * (np.cos(turn) * axes[0] + np.sin(turn) * axes[1]) + 3 * smooth_noise(rng, size, 6 * unit)
    waves = np.sin(0.9 * across) * np.clip(0.5 + 0.5 * smooth_noise(rng, size, 4 * unit), 0, 1)
    scar = tumour.fibres * (1 - inside) * np.clip(waves, -0.3, 1)
    tissue = np.clip((draw_tissue(rng, pixels(size)) + scar) * (1 - 0.3 * inside), 0, None) * (1 - 0.9 * lumen)
    grain = np.clip(1 + style.chromatin * smooth_noise(rng, size, 0.7), 0.2, None)
    stain = style.nuclear_strength * blurred(nuclear, 0.4 * unit) * grain
    return mask, np.asarray(stain, dtype=np.float32), np.asarray(tissue, dtype=np.float32)


_crag, _glas = partial(_glands, glands=Glands((11.0, 17.0), 0.3, 0.4, 5)), partial(_glands, glands=Glands())
_colorectum = partial(_tumour, tumour=Tumour(nests=9.0, cells=0.8, crowd=0.3, lumens=1.0))
_pancreas = partial(_tumour, tumour=Tumour(nests=4.5, cells=1.1, crowd=0.0, lumens=1.6, fibres=0.9))
_stomach = partial(_tumour, tumour=Tumour(nests=12.0, cells=1.4, crowd=-0.5, lumens=3.5, fibres=0.2))
_breast = partial(_tumour, tumour=Tumour(nests=6.5, cells=1.0, crowd=0.2, lumens=2.5, fibres=0.7))
_same_scanner = Style(nuclear=(0.60, 0.68, 0.30), tissue=(0.12, 0.85, 0.30), tissue_strength=0.5, chromatin=0.15)

SITES: dict[str, Callable[[np.random.Generator, Size], Drawing]] = {
    "source-1": partial(_stained, shape=_nuclei, style=Style(crowd=1.3, zoom=0.85, chromatin=0.2)),
    "source-2": partial(_stained, shape=_nuclei, style=Style(
        nuclear=(0.75, 0.62, 0.20), tissue=(0.30, 0.75, 0.15), nuclear_strength=0.8, tissue_strength=0.55, zoom=0.65,
        crowd=2.0, hollow=0.2, haze=0.35, blur=0.7, noise=0.02,
    )),
    "source-3": partial(_stained, shape=_crag, style=Style(
        nuclear=(0.62, 0.72, 0.32), tissue=(0.10, 0.80, 0.35), nuclear_strength=1.1, tissue_strength=0.5, blur=0.5,
    )),
    "source-4": partial(_stained, shape=_nuclei, style=Style(  # frozen, so less sharp
        nuclear=(0.55, 0.75, 0.40), tissue=(0.40, 0.80, 0.45), nuclear_strength=1.2, tissue_strength=0.85, haze=0.5,
        chromatin=0.1, blur=1.1, noise=0.02, white=(0.92, 0.90, 0.94),
    )),
    "source-5": partial(_stained, shape=_glas, style=Style(
        nuclear=(0.50, 0.80, 0.45), tissue=(0.25, 0.90, 0.60), nuclear_strength=1.0, tissue_strength=0.65, blur=0.8,
        noise=0.02, white=(0.94, 0.88, 0.94),
    )),
    "source-6": partial(_stained, shape=_nuclei, style=Style(
        nuclear=(0.60, 0.62, 0.25), tissue=(0.20, 0.60, 0.20), nuclear_strength=0.6, tissue_strength=0.35, hollow=0.6,
        haze=0.25, crowd=1.2, noise=0.02,
    )),
    "source-7": partial(_stained, shape=_nuclei, style=Style(
        nuclear=(0.45, 0.78, 0.25), tissue=(0.05, 0.75, 0.20), nuclear_strength=1.0, tissue_strength=0.7, zoom=1.3,
        crowd=0.6, hollow=0.4, chromatin=0.3, blur=0.4, white=(0.98, 0.96, 0.96),
    )),
    "modality-cytology": partial(_stained, shape=_smear, style=Style(
        nuclear=(0.85, 0.65, 0.30), tissue=(0.25, 0.20, 0.08), nuclear_strength=1.1, tissue_strength=0.8, zoom=0.95,
        crowd=1.2, hollow=0.0, chromatin=0.2, white=(0.90, 0.93, 0.94), blur=0.7,
    )),
    "modality-fluorescence": partial(_fluorescent, style=Style(
        nuclear=(0.30, 0.50, 1.00), nuclear_strength=1.6, crowd=1.5, zoom=1.1, hollow=0.0, chromatin=0.25, haze=0.25,
        blur=0.8, noise=0.03,
    )),
    "modality-histology": partial(_stained, shape=_nuclei, style=Style(
        nuclear=(0.55, 0.70, 0.30), tissue=(0.20, 0.85, 0.25), nuclear_strength=0.9, tissue_strength=0.6, crowd=1.8,
        zoom=0.8, hollow=0.3, noise=0.02,
    )),
    "organ-colorectum": partial(_stained, shape=_colorectum, style=_same_scanner),
    "organ-pancreas": partial(_stained, shape=_pancreas, style=_same_scanner),
    "organ-stomach": partial(_stained, shape=_stomach, style=_same_scanner),
    "scanner-1": partial(_stained, shape=_breast, style=Style(tissue=(0.10, 0.90, 0.20), blur=0.4)),
    "scanner-2": partial(_stained, shape=_breast, style=Style(  # yellowish, soft
        nuclear=(0.50, 0.60, 0.45), tissue=(0.15, 0.65, 0.50), nuclear_strength=0.6, tissue_strength=0.3, blur=1.0,
        noise=0.01, white=(0.99, 0.97, 0.88),
    )),
    "scanner-3": partial(_stained, shape=_breast, style=Style(  # bluish, dark, noisy
        nuclear=(0.85, 0.65, 0.20), tissue=(0.45, 0.75, 0.15), nuclear_strength=1.3, tissue_strength=0.7, blur=0.6,
        noise=0.045, white=(0.86, 0.90, 0.97),
    )),
}  # fmt: skip
