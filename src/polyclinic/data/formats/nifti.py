"""NIfTI volumes through nibabel."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.data.formats.registry import Format, Header, channels_first, checked_affine, register_format


def _nifti_header(path: Path) -> Header:
    import nibabel

    image: Any = nibabel.load(path)
    shape = tuple(int(size) for size in image.shape)
    return Header(shape[:3], int(np.prod(shape[3:], dtype=int)), checked_affine(np.asarray(image.affine, dtype=float)))


def _nifti_array(path: Path, label: bool) -> npt.NDArray[Any]:  # noqa: ARG001
    import nibabel

    image: Any = nibabel.load(path)
    return channels_first(np.asanyarray(image.dataobj), len(image.shape[:3]))


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


register_format(Format((".nii.gz", ".nii"), _nifti_header, _nifti_array, _write_nifti))
