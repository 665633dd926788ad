"""DICOM series through ITK (GDCM): a file ``NAME.dicom.json`` lists the slices of one series and says where they lie.

A series is many files, so the list stands for the image, as an MHD header does for its data. ``data/dicom_series.py``
finds series in folders and writes the lists; nothing of a patient but the paths of the files is in them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.files import write_json
from polyclinic.data.formats.registry import Format, Header, checked_affine, register_format

SUFFIX = ".dicom.json"


@dataclass(frozen=True)
class SliceList:
    """The files of a series in the order of their slices, the grid ``(x, y, z)`` they make, its affine in RAS."""

    files: tuple[Path, ...]
    shape: tuple[int, int, int]
    affine: npt.NDArray[np.float64]

    def write(self, path: Path) -> None:
        """Write the list; paths are absolute, so that it can lie anywhere."""
        files = [str(file.resolve()) for file in self.files]
        write_json(path, {"shape": self.shape, "affine": self.affine.tolist(), "files": files})


def _read_list(path: Path) -> SliceList:
    content = json.loads(path.read_text(encoding="utf-8"))
    shape = tuple(int(size) for size in content["shape"])
    affine = np.array(content["affine"], dtype=float)
    files = tuple(path.parent / str(file) for file in content["files"])
    if len(shape) != 3 or affine.shape != (4, 4) or len(files) != shape[2] or min(shape) < 1:
        raise ValueError("expected a shape of three numbers, a 4x4 affine, and a file for each slice")
    return SliceList(files, shape, checked_affine(affine))


def _dicom_header(path: Path) -> Header:
    series = _read_list(path)
    return Header(series.shape, 1, series.affine)


def _dicom_array(path: Path, label: bool) -> npt.NDArray[np.float32]:  # noqa: ARG001
    """Voxels ``(1, x, y, z)`` in the unit of the scanner: each slice has a slope and an intercept of its own."""
    series = _read_list(path)
    volume = np.empty(series.shape, dtype=np.float32)
    for number, file in enumerate(series.files):
        volume[..., number] = _slice(file, series.shape[:2])
    return volume[None]


def _slice(file: Path, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """One slice ``(x, y)``."""
    import itk

    if not file.is_file():
        raise FileNotFoundError(f"its slice {file} is not there any more")
    reader: Any = itk.ImageFileReader[itk.Image[itk.F, 2]].New(ImageIO=itk.GDCMImageIO.New(), FileName=str(file))
    try:
        reader.Update()
    except RuntimeError as error:
        raise ValueError(f"its slice {file} is damaged or compressed in a way that GDCM does not know") from error
    array: npt.NDArray[np.float32] = itk.array_from_image(reader.GetOutput()).T  # ITK's arrays are (y, x)
    if array.shape != shape:
        raise ValueError(f"its slice {file} has the size {'x'.join(map(str, array.shape))}, so it was changed")
    return array


# NIfTI and not DICOM: every viewer and every tool for segmentation reads it, and it carries the same place in space.
register_format(Format((SUFFIX,), _dicom_header, _dicom_array, mask_suffixes={SUFFIX: ".nii.gz"}))
