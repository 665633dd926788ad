"""NIfTI volumes through nibabel."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.data.formats.registry import (
    Format,
    Header,
    channels_first,
    checked_affine,
    read_header,
    register_format,
    suffix_of,
)

SUFFIXES = (".nii.gz", ".nii")


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

    if suffix_of(image) not in SUFFIXES:
        path.write_bytes(nifti_bytes(array, read_header(image).affine, suffix))
        return
    like: Any = nibabel.load(image)
    header = like.header.copy()  # keeps the forms, their codes and the units
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    mask = type(like)(array, like.affine, header)
    path.write_bytes(_packed(mask, suffix))


def nifti_bytes(array: npt.NDArray[Any], affine: npt.NDArray[np.float64] | None, suffix: str, level: int = 9) -> bytes:
    """A NIfTI file of voxels ``(x, y, z, ...)`` that lie where the affine says, in scanner coordinates (RAS, mm).

    ``level`` is that of the compression, from 1 (quick) to 9.
    """
    import nibabel

    image = nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(image.affine, code=1)
    steps = image.affine[:3, :3] / np.linalg.norm(image.affine[:3, :3], axis=0)
    # The other form is a turn without shear, so a tilted gantry has none.
    image.set_qform(image.affine, code=1 if np.allclose(steps.T @ steps, np.eye(3), atol=1e-4) else 0)
    return _packed(image, suffix, level)


def _packed(image: Any, suffix: str, level: int = 9) -> bytes:
    voxels: bytes = image.to_bytes()
    return gzip.compress(voxels, level, mtime=0) if suffix == ".nii.gz" else voxels


register_format(Format(SUFFIXES, _nifti_header, _nifti_array, _write_nifti))
