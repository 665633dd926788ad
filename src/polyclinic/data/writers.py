"""Masks, written in the format and the geometry of the image they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.data.federation import Item
from polyclinic.data.formats import FORMATS, read_header, stem_of, suffix_of


def write_label(path: Path, array: npt.NDArray[Any], like: Item) -> Path:
    """Write classes ``(*spatial)`` as uint8 on the grid of the image ``like``; return the path with the suffix it got.

    The suffix of ``path`` is replaced by the image's own, or by the one that its format has for masks: a JPEG or BMP
    image gets a PNG (JPEG is lossy), an MHD image an MHA (one file).
    """
    image = like.images[0]
    shape = read_header(image).shape
    if array.shape != shape:
        raise ValueError(f"label of shape {array.shape} for {image}, expected {shape}")
    suffix = _mask_suffix(image)
    path = path.with_name((stem_of(path) if suffix_of(path) else path.name) + suffix)
    classes = np.ascontiguousarray(array, dtype=np.uint8)
    write = FORMATS[suffix].write_mask
    if write is None:
        raise PolyclinicError(f"{image}: masks cannot be written as {suffix}; give its format a write_mask.")
    with atomic_write(path) as temporary:
        write(temporary, classes, image, suffix)
    return path


def _mask_suffix(image: Path) -> str:
    """The suffix of an image's mask: its own, or that which its format puts in its place."""
    suffix = suffix_of(image) or ".png"
    return FORMATS[suffix].mask_suffixes.get(suffix, suffix)
