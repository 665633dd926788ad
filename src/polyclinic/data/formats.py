"""One image file: its header, cheaply, and its voxels, through MONAI's readers.

Axes: PNG, JPEG and TIFF give ``(row, column)``, a TIFF of several pages ``(row, column, page)``;
NIfTI, MHA and NRRD give ``(x, y)`` or ``(x, y, z)`` with an affine in RAS millimetres.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import ImageSequence

from polyclinic.core.errors import PolyclinicError

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
NIFTI = (".nii.gz", ".nii")
ITK = (".mha", ".mhd", ".nrrd")
SUFFIXES = PICTURES + NIFTI + ITK
_GREY_MODES = ("1", "L", "LA", "F")


@dataclass(frozen=True)
class Header:
    """What a file says of itself without its voxels: ``shape`` is spatial only."""

    shape: tuple[int, ...]
    channels: int
    affine: npt.NDArray[np.float64] | None

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Millimetres along each axis, or None for pictures."""
        return None if self.affine is None else spacing_of(self.affine, len(self.shape))


def spacing_of(affine: npt.NDArray[np.float64], rank: int) -> tuple[float, ...]:
    """Millimetres along each of the ``rank`` spatial axes of a 4x4 affine."""
    return tuple(float(value) for value in np.linalg.norm(affine[:3, :rank], axis=0))


def suffix_of(path: Path) -> str | None:
    """The known suffix of a file in lower case (``.nii.gz`` counts as one), or None."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def stem_of(path: Path) -> str:
    """The file name without its known suffix."""
    suffix = suffix_of(path)
    return path.name[: -len(suffix)] if suffix else path.stem


def read_header(path: Path) -> Header:
    """Read shape, channels and affine of a file, not its voxels."""
    with _sentence(path):
        suffix = suffix_of(path)
        if suffix in PICTURES:
            return _picture_header(path)
        if suffix in NIFTI:
            return _nifti_header(path)
        return _itk_header(path)


def read_array(path: Path, label: bool = False) -> npt.NDArray[Any]:
    """Read the voxels as ``(channel, *spatial)`` in the file's own type.

    Alpha is dropped; palettes are looked up for images, while for a ``label`` the palette index is the class.
    """
    with _sentence(path):
        suffix = suffix_of(path)
        if suffix in PICTURES:
            return _picture_array(path, label)
        from monai.data import ITKReader, NibabelReader

        reader = NibabelReader() if suffix in NIFTI else ITKReader()
        array, _ = reader.get_data(reader.read(path))
        if array.dtype.fields:
            raise ValueError("structured voxels such as RGB24 are not supported")
        rank = len(read_header(path).shape)
        # Whatever follows the spatial axes (time, vector components, nnU-Net or Decathlon channels) is channels.
        return np.moveaxis(array.reshape(*array.shape[:rank], -1), -1, 0)


@contextlib.contextmanager
def _sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except PolyclinicError:
        raise
    except Exception as error:  # Damaged files raise anything: SyntaxError from PIL, zlib.error, RuntimeError from ITK.
        lines = str(error).strip().splitlines()
        reason = lines[-1].strip() if lines else type(error).__name__
        kind = (suffix_of(path) or path.suffix).lstrip(".")
        raise PolyclinicError(
            f"{path}: cannot be read as {kind} ({reason}); replace the file or take it out of the folder."
        ) from error


def _picture_header(path: Path) -> Header:
    with PILImage.open(path) as picture:
        grey = picture.mode in _GREY_MODES or picture.mode.startswith("I")
        pages = _pages(picture)
        shape = (picture.height, picture.width, *((pages,) if pages > 1 else ()))
        return Header(shape, 1 if grey else 3, None)


def _pages(picture: PILImage.Image) -> int:
    # Only TIFF: a JPEG of a phone may carry a second "frame" that is a preview.
    return int(getattr(picture, "n_frames", 1)) if picture.format == "TIFF" else 1


def _picture_array(path: Path, label: bool) -> npt.NDArray[Any]:
    from monai.data import PILReader

    reader = PILReader(reverse_indexing=False)  # the default swaps rows and columns
    pages = []
    with reader.read(path) as picture:
        frames: Any = ImageSequence.Iterator(picture) if _pages(picture) > 1 else [picture]
        for frame in frames:
            frame.load()  # numpy would hide the error of a truncated file
            array, _ = reader.get_data(_plain(frame, label))
            pages.append(array if array.ndim == 3 else array[..., None])
    if len({page.shape for page in pages}) > 1:
        raise ValueError("its pages differ in size, so that it is neither an image nor a volume")
    stacked = pages[0] if len(pages) == 1 else np.stack(pages, axis=2)
    return np.moveaxis(stacked, -1, 0)


def _plain(picture: PILImage.Image, label: bool) -> PILImage.Image:
    if picture.mode in ("LA", "PA") and (label or picture.mode == "LA"):
        return picture.getchannel(0)
    if picture.mode in ("RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "PA") or (picture.mode == "P" and not label):
        return picture.convert("RGB")
    return picture


def _nifti_header(path: Path) -> Header:
    import nibabel

    image: Any = nibabel.load(path)
    shape = tuple(int(size) for size in image.shape)
    return Header(shape[:3], int(np.prod(shape[3:], dtype=int)), _checked(np.asarray(image.affine, dtype=float)))


def _itk_header(path: Path) -> Header:
    io = itk_header(path)
    axes = range(io.GetNumberOfDimensions())
    shape = tuple(int(io.GetDimensions(axis)) for axis in axes)
    rank = min(len(shape), 3)
    affine = np.eye(4)
    affine[:rank, :rank] = np.array([io.GetDirection(axis)[:rank] for axis in axes[:rank]]).T
    affine[:rank, :rank] *= [io.GetSpacing(axis) for axis in axes[:rank]]
    affine[:rank, 3] = [io.GetOrigin(axis) for axis in axes[:rank]]
    to_ras = np.diag([-1.0, -1.0, 1.0, 1.0])  # ITK counts to the left and to the back
    channels = int(np.prod(shape[3:], dtype=int)) * int(io.GetNumberOfComponents())
    return Header(shape[:3], channels, _checked(to_ras @ affine))


def itk_header(path: Path) -> Any:
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


def _checked(affine: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise ValueError("its affine is singular, so that voxels have no place in space")
    return affine
