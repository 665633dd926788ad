"""Masks, written in the format and the geometry of the image they belong to."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage

from polyclinic.core.files import atomic_write
from polyclinic.data.federation import Item
from polyclinic.data.formats import NIFTI, PICTURES, itk_header, read_header, stem_of, suffix_of


def write_label(path: Path, array: npt.NDArray[Any], like: Item) -> Path:
    """Write classes ``(*spatial)`` as uint8 on the grid of the image ``like``; return the path with the suffix it got.

    The suffix of ``path`` is replaced by the image's own, except that a JPEG or BMP image gets a PNG (JPEG is lossy)
    and an MHD image an MHA (one file).
    """
    image = like.images[0]
    shape = read_header(image).shape
    if array.shape != shape:
        raise ValueError(f"label of shape {array.shape} for {image}, expected {shape}")
    suffix = suffix_of(image) or ".png"
    suffix = {".jpg": ".png", ".jpeg": ".png", ".bmp": ".png", ".mhd": ".mha"}.get(suffix, suffix)
    path = path.with_name((stem_of(path) if suffix_of(path) else path.name) + suffix)
    classes = np.ascontiguousarray(array, dtype=np.uint8)
    with atomic_write(path) as temporary:
        if suffix in PICTURES:
            _write_picture(temporary, classes, suffix)
        elif suffix in NIFTI:
            _write_nifti(temporary, classes, image, suffix)
        else:
            _write_itk(temporary, classes, image, suffix)
    return path


def _write_picture(path: Path, array: npt.NDArray[np.uint8], suffix: str) -> None:
    pages = [array] if array.ndim == 2 else list(np.moveaxis(array, 2, 0))
    first, *rest = (PILImage.fromarray(page) for page in pages)
    if suffix == ".png":
        first.save(path, format="PNG")
    else:
        first.save(path, format="TIFF", compression="tiff_deflate", save_all=bool(rest), append_images=rest)


def _write_nifti(path: Path, array: npt.NDArray[np.uint8], image: Path, suffix: str) -> None:
    import nibabel

    like: Any = nibabel.load(image)
    header = like.header.copy()  # keeps the forms, their codes and the units
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    mask = type(like)(array, like.affine, header)
    voxels = mask.to_bytes()
    path.write_bytes(gzip.compress(voxels, mtime=0) if suffix == ".nii.gz" else voxels)


def _write_itk(path: Path, array: npt.NDArray[np.uint8], image: Path, suffix: str) -> None:
    import itk

    like = itk_header(image)
    axes = range(array.ndim)
    mask = itk.image_from_array(np.ascontiguousarray(array.T))  # ITK's arrays are (z, y, x)
    mask.SetSpacing([like.GetSpacing(axis) for axis in axes])
    mask.SetOrigin([like.GetOrigin(axis) for axis in axes])
    direction = np.array([like.GetDirection(axis)[: array.ndim] for axis in axes]).T
    mask.SetDirection(itk.matrix_from_array(np.ascontiguousarray(direction)))
    named = path.with_name(path.name + suffix)  # ITK chooses the format by the suffix
    itk.imwrite(mask, str(named), compression=True)
    named.replace(path)
