"""All file formats by suffix: how a header, the voxels and a mask are read and written.

A format is one file of this folder that registers a ``Format``; a file of a recipe's ``plugins`` may register one too.
Axes: pictures give ``(row, column)``, a TIFF of several pages ``(row, column, page)``; NIfTI, MHA and NRRD give
``(x, y)`` or ``(x, y, z)`` with an affine in RAS millimetres.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError

ReadArray = Callable[[Path, bool], npt.NDArray[Any]]
"""The voxels ``(channel, *spatial)`` of a file in its own type, and whether it is read as a label."""
WriteMask = Callable[[Path, npt.NDArray[np.uint8], Path, str], None]
"""Write classes ``(*spatial)`` to a path, with the geometry of an image file, in the format of a suffix."""


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


@dataclass(frozen=True)
class Format:
    """A family of suffixes with one way to read and write them.

    Masks of a suffix in ``mask_suffixes`` are written with another one, because the format is lossy or needs two files;
    without ``write_mask`` that must be a suffix of a format that has it. ``picture`` says that the first two axes are
    rows and columns, and that grey may stand for three equal colours.
    """

    suffixes: tuple[str, ...]
    read_header: Callable[[Path], Header]
    read_array: ReadArray
    write_mask: WriteMask | None = None
    mask_suffixes: Mapping[str, str] = field(default_factory=dict)
    picture: bool = False


FORMATS: dict[str, Format] = {}
SUFFIXES = FORMATS.keys()
"""All known suffixes, those that plugins register later too."""


def register_format(entry: Format) -> Format:
    """Make a format known under its suffixes, which are in lower case and start with a dot."""
    for suffix in entry.suffixes:
        if not suffix.startswith(".") or suffix != suffix.lower():
            raise PolyclinicError(f"The suffix '{suffix}' of a format must be in lower case and start with a dot.")
        if FORMATS.setdefault(suffix, entry) is not entry:
            raise PolyclinicError(f"Two formats have the suffix '{suffix}'; take it out of one of them.")
    return entry


def import_formats() -> None:
    """Import every module of this folder, so that a new file needs no list to be put on."""
    import polyclinic.data.formats as package

    # Backwards, so that errors list the suffixes of pictures first.
    for name in sorted((module.name for module in pkgutil.iter_modules(package.__path__)), reverse=True):
        importlib.import_module(f"{package.__name__}.{name}")


def suffix_of(path: Path) -> str | None:
    """The known suffix of a file in lower case (``.nii.gz`` counts as one), or None."""
    name = path.name.lower()
    return max((suffix for suffix in FORMATS if name.endswith(suffix)), key=len, default=None)


def stem_of(path: Path) -> str:
    """The file name without its known suffix."""
    suffix = suffix_of(path)
    return path.name[: -len(suffix)] if suffix else path.stem


def format_of(path: Path) -> Format:
    """The format of a file by its suffix."""
    # A manifest may name files with any suffix, and ITK recognises more formats by their content.
    return FORMATS[suffix_of(path) or ".mha"]


def is_picture(path: Path) -> bool:
    """Whether a file has rows and columns and no place in space."""
    suffix = suffix_of(path)
    return suffix is not None and FORMATS[suffix].picture


def read_header(path: Path) -> Header:
    """Read shape, channels and affine of a file, not its voxels."""
    with _sentence(path):
        return format_of(path).read_header(path)


def read_array(path: Path, label: bool = False) -> npt.NDArray[Any]:
    """Read the voxels as ``(channel, *spatial)`` in the file's own type.

    Alpha is dropped; palettes are looked up for images, while for a ``label`` the palette index is the class.
    """
    with _sentence(path):
        return format_of(path).read_array(path, label)


def channels_first(array: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
    """Voxels ``(*spatial, ...)`` as ``(channel, *spatial)``.

    Whatever follows the ``rank`` spatial axes (time, vector components, nnU-Net or Decathlon channels) is channels.
    """
    if array.dtype.fields:
        raise ValueError("structured voxels such as RGB24 are not supported")
    return np.moveaxis(array.reshape(*array.shape[:rank], -1), -1, 0)


def checked_affine(affine: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The affine, if it gives every voxel a place of its own."""
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise ValueError("its affine is singular, so that voxels have no place in space")
    return affine


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
