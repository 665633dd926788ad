"""MetaImage and NRRD volumes through ITK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.data.formats.registry import Format, Header, channels_first, checked_affine, register_format


def _itk_header(path: Path) -> Header:
    io = _image_io(path)
    axes = range(io.GetNumberOfDimensions())
    shape = tuple(int(io.GetDimensions(axis)) for axis in axes)
    rank = min(len(shape), 3)
    affine = np.eye(4)
    affine[:rank, :rank] = np.array([io.GetDirection(axis)[:rank] for axis in axes[:rank]]).T
    affine[:rank, :rank] *= [io.GetSpacing(axis) for axis in axes[:rank]]
    affine[:rank, 3] = [io.GetOrigin(axis) for axis in axes[:rank]]
    to_ras = np.diag([-1.0, -1.0, 1.0, 1.0])  # ITK counts to the left and to the back
    channels = int(np.prod(shape[3:], dtype=int)) * int(io.GetNumberOfComponents())
    return Header(shape[:3], channels, checked_affine(to_ras @ affine))


def _image_io(path: Path) -> Any:
    """The ITK ``ImageIO`` of a file, with its information read but not its voxels."""
    import itk

    if not path.is_file():
        raise FileNotFoundError("no such file")
    io = itk.ImageIOFactory.CreateImageIO(str(path), itk.CommonEnums.IOFileMode_ReadMode)
    if io is None:
        raise ValueError("ITK does not recognise it")
    io.SetFileName(str(path))
    io.ReadImageInformation()
    return io


def _itk_array(path: Path, label: bool) -> npt.NDArray[Any]:  # noqa: ARG001
    import itk

    image = itk.imread(str(path))
    array = itk.array_view_from_image(image).T  # ITK's arrays are (z, y, x), with components last
    if image.GetNumberOfComponentsPerPixel() > 1:
        array = np.moveaxis(array, 0, -1)
    return channels_first(array, len(_itk_header(path).shape))


def _write_itk(path: Path, array: npt.NDArray[np.uint8], image: Path, suffix: str) -> None:
    import itk

    like = _image_io(image)
    axes = range(array.ndim)
    mask = itk.image_from_array(np.ascontiguousarray(array.T))  # ITK's arrays are (z, y, x)
    mask.SetSpacing([like.GetSpacing(axis) for axis in axes])
    mask.SetOrigin([like.GetOrigin(axis) for axis in axes])
    direction = np.array([like.GetDirection(axis)[: array.ndim] for axis in axes]).T
    mask.SetDirection(itk.matrix_from_array(np.ascontiguousarray(direction)))
    named = path.with_name(path.name + suffix)  # ITK chooses the format by the suffix
    itk.imwrite(mask, str(named), compression=True)
    named.replace(path)


register_format(Format((".mha", ".mhd", ".nrrd"), _itk_header, _itk_array, _write_itk, {".mhd": ".mha"}))
