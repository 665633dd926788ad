"""What magnetic resonance phantoms share: a field of view in mm, and a scanner that turns tissues into intensities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.phantoms.drawing import Array, bias_field, blurred, coordinates, rician, smooth_noise

Tissue = NDArray[np.uint8]


@dataclass(frozen=True)
class Style:
    """How one site's scanner sees. Intensities are relative, in the order of the phantom's tissues."""

    intensities: tuple[float, ...]
    texture: float = 0.10  # relative deviation of the tissue itself
    shading: float = 0.10  # strength of the slow bias field
    coil: float = 0.0  # extra brightness near a coil
    blur: float = 0.5  # pixels, in plane
    noise: float = 0.03
    gamma: float = 1.0
    scale: float = 800.0
    spacing: tuple[float, float] = (1.0, 3.0)  # in plane, between slices; in mm, at the default size


def field_of_view(
    size: tuple[int, ...], style: Style, pixel: float = 1.0, slices: int = 10
) -> tuple[tuple[Array, ...], tuple[float, ...]]:
    """Coordinates ``(x, y, z)``, from -1 to 1 in plane where a site's pixels are ``pixel`` mm wide, and the spacing."""
    plane, depth = style.spacing
    x, y, z = coordinates(size)
    wide = np.float32(plane / pixel)
    return (x * wide, y * wide, z), (plane * 64 / size[0], plane * 64 / size[1], depth * slices / size[2])


def scan(rng: np.random.Generator, tissue: Tissue, style: Style, light: Array | float = 1.0) -> NDArray[np.int16]:
    """The image ``(x, y, z)`` of a map of tissues; ``light`` is brightness on top of the bias field."""
    size = tissue.shape
    table = np.asarray(style.intensities, dtype=np.float32) * rng.normal(1, 0.05, len(style.intensities)).astype(
        np.float32
    )
    image = table[tissue] * (1 + style.texture * smooth_noise(rng, size, (1.2, 1.2, 0.5)))
    image *= bias_field(rng, size, style.shading)
    image *= light
    image = blurred(image, (style.blur * size[0] / 64, style.blur * size[1] / 64, 0.3))
    image = rician(rng, np.clip(image, 0, None), style.noise) ** np.float32(style.gamma)
    return np.asarray(np.rint(np.clip(image * style.scale, 0, 32000)), dtype=np.int16)
