"""Masks and probabilities, written on the grid of the image they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.data.federation import Item
from polyclinic.data.formats import FORMATS, is_picture, read_header, stem_of, suffix_of


def write_label(path: Path, array: npt.NDArray[Any], like: Item) -> Path:
    """Write classes ``(*spatial)`` as uint8 on the grid of the image ``like``; return the path with the suffix it got.

    The suffix of ``path`` is replaced by the image's own, or by the one that its format has for masks: a JPEG or BMP
    image gets a PNG (JPEG is lossy), an MHD image an MHA (one file), a DICOM series a NIfTI.
    """
    image = like.images[0]
    shape = read_header(image).shape
    if array.shape != shape:
        raise ValueError(f"label of shape {array.shape} for {image}, expected {shape}")
    suffix = _mask_suffix(image)
    path = mask_path(path, like)
    classes = np.ascontiguousarray(array, dtype=np.uint8)
    write = FORMATS[suffix].write_mask
    if write is None:
        raise PolyclinicError(f"{image}: masks cannot be written as {suffix}; give its format a write_mask.")
    with atomic_write(path) as temporary:
        write(temporary, classes, image, suffix)
    return path


def mask_path(path: Path, like: Item) -> Path:
    """Where ``write_label`` puts a mask."""
    return path.with_name((stem_of(path) if suffix_of(path) else path.name) + _mask_suffix(like.images[0]))


def _mask_suffix(image: Path) -> str:
    """The suffix of an image's mask: its own, or that which its format puts in its place."""
    suffix = suffix_of(image) or ".png"
    return FORMATS[suffix].mask_suffixes.get(suffix, suffix)


def probabilities_path(path: Path, like: Item) -> Path:
    """Where probabilities go: a TIFF beside a picture's mask, else a NIfTI."""
    name = stem_of(path) if suffix_of(path) else path.name
    return path.with_name(f"{name}.probabilities{'.tif' if is_picture(like.images[0]) else '.nii.gz'}")


def write_probabilities(path: Path, array: npt.NDArray[np.float32], like: Item) -> None:
    """Write probabilities ``(class, *spatial)`` of the image ``like`` in float32.

    A volume's classes are the fourth axis of a NIfTI with the image's affine. A picture's are the pages of a TIFF;
    those of a TIFF of several pages come class by class, each with all of its pages.
    """
    with atomic_write(path) as temporary:
        if is_picture(like.images[0]):
            from PIL import Image

            pages = [np.atleast_3d(one)[..., number] for one in array for number in range(np.atleast_3d(one).shape[2])]
            first, *rest = (Image.fromarray(np.ascontiguousarray(page)) for page in pages)
            first.save(temporary, format="TIFF", compression="tiff_deflate", save_all=bool(rest), append_images=rest)
        else:
            from polyclinic.data.formats.nifti import nifti_bytes

            # An image of two axes has a third one of length 1 in a NIfTI, where the fourth can be the classes.
            axes = array if array.ndim == 4 else array[..., None]
            affine = read_header(like.images[0]).affine
            # Digits of floats hardly shrink, however long one tries.
            temporary.write_bytes(nifti_bytes(np.moveaxis(axes, 0, -1), affine, ".nii.gz", level=1))
