"""Images in, masks out: pictures through Pillow, NIfTI through nibabel, MHA, MHD and NRRD through itk.

Axes: pictures are ``(row, column)``, a TIFF of several pages ``(row, column, page)``; the others ``(x, y)`` or
``(x, y, z)`` with an affine in RAS millimetres.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
NIFTI = (".nii.gz", ".nii")
ITK = (".mha", ".mhd", ".nrrd")
_MASK_SUFFIXES = {".jpg": ".png", ".jpeg": ".png", ".bmp": ".png", ".mhd": ".mha"}  # lossy, or two files
_CHANNEL_NAME = re.compile(r"(.+)_(\d{4})")


@dataclass(frozen=True)
class ImageFiles:
    """The files of one image: one, or one for each channel (``name_0000``, ``name_0001``, ...) at its place."""

    name: str
    paths: tuple[Path, ...]
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Image:
    """Voxels ``(channel, *spatial)`` in float32, their affine ``(4, 4)`` if the file has one, and the largest number
    that the file could hold if it holds unsigned integers. ``absent`` are the channels without a file: zeros."""

    voxels: Array
    affine: Array | None
    highest: float | None
    picture: bool = False
    absent: frozenset[int] = frozenset()


def suffix_of(path: Path) -> str:
    """The known suffix of a file in lower case, or nothing."""
    name = path.name.lower()
    return max((suffix for suffix in (*PICTURES, *NIFTI, *ITK) if name.endswith(suffix)), key=len, default="")


def stem_of(path: Path) -> str:
    """The file name without its known suffix."""
    return path.name[: len(path.name) - len(suffix_of(path))]


def list_images(path: Path, channels: int, zero_fill: bool) -> list[ImageFiles]:
    """The images of a file or a folder, by name.

    Files named ``name_0000``, ``name_0001`` and so on are the channels of one image, unless the first of them has all
    ``channels`` by itself. With ``zero_fill`` an image may lack channels.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder; give an image or a folder of images.")
    folder = path / "images" if (path / "images").is_dir() else path
    beside = folder if folder.is_dir() else folder.parent
    files = sorted(file for file in beside.iterdir() if suffix_of(file) and not file.name.startswith("."))
    if path.is_file():
        match = _CHANNEL_NAME.fullmatch(stem_of(path))
        family = [f for f in files if suffix_of(f) == suffix_of(path) and _CHANNEL_NAME.fullmatch(stem_of(f))]
        files = [f for f in family if stem_of(f)[:-5] == match[1]] if match else [path] if suffix_of(path) else []
    if not files:
        raise ValueError(f"{path}: holds no images; expected one of {', '.join((*PICTURES, *NIFTI, *ITK))}.")
    names = [_CHANNEL_NAME.fullmatch(stem_of(file)) for file in files]
    numbers = {match[2] if match else None for match in names}
    single = None in numbers or (numbers != {"0000"} and len(read_file(files[0])[0]) == channels)
    if single:
        listed = [ImageFiles(stem_of(file), (file,)) for file in files]
        return [image for image in listed if path.is_dir() or image.paths == (path,)]
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(stem_of(file)[:-5], []).append(file)
    return [_group(name, tuple(paths), channels, zero_fill) for name, paths in sorted(groups.items())]


def _group(name: str, paths: tuple[Path, ...], channels: int, zero_fill: bool) -> ImageFiles:
    places = tuple(int(stem_of(path)[-4:]) for path in paths)
    if not zero_fill and places not in ((0,), tuple(range(channels))):
        raise ValueError(f"{name}: has the channels {list(places)}, but the model needs {channels} from 0000 on.")
    return ImageFiles(name, paths, places if zero_fill else ())


def read_image(files: ImageFiles, channels: int) -> Image:
    """Read an image with so many channels; grey pictures stand for three equal colours, and equal colours for grey."""
    parts, affines = zip(*(read_file(path) for path in files.paths), strict=True)
    first = files.paths[0]
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        raise ValueError(f"{first}: the channels of an image must have one size.")
    array = np.concatenate(parts)
    if files.places:
        if len(array) != len(files.places) or max(files.places) >= channels:
            raise ValueError(f"{first}: its files hold {len(array)} channels, but the model has {channels}.")
        placed = np.zeros((channels, *array.shape[1:]), dtype=array.dtype)
        placed[list(files.places)] = array
        array = placed
    highest = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else None
    if len(array) != channels:
        if channels == 1 and (array == array[:1]).all():
            array = array[:1]
        elif channels == 3 and len(array) == 1 and suffix_of(first) in PICTURES:
            array = np.repeat(array, 3, axis=0)
        else:
            raise ValueError(f"{first}: has {len(array)} channels, but the model has {channels}.")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{first}: holds NaN or infinite values; replace them.")
    absent = frozenset(range(channels)) - set(files.places) if files.places else frozenset()
    return Image(array, affines[0], highest, suffix_of(first) in PICTURES, absent)


def read_file(path: Path) -> tuple[Array, Array | None]:
    """The voxels ``(channel, *spatial)`` of a file in its own type, and its affine."""
    suffix = suffix_of(path)
    if suffix in PICTURES:
        return _read_picture(path), None
    return _read_nifti(path) if suffix in NIFTI else _read_itk(path)


def write_mask(folder: Path, mask: Array, files: ImageFiles) -> Path:
    """Write classes ``(*spatial)`` as uint8 in the format and geometry of the image."""
    image = files.paths[0]
    suffix = _MASK_SUFFIXES.get(suffix_of(image), suffix_of(image))
    path = folder / f"{files.name}{suffix}"
    if path.exists():
        raise ValueError(f"{path}: is there already; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write = _write_picture if suffix in PICTURES else _write_nifti if suffix in NIFTI else _write_itk
    write(path, np.ascontiguousarray(mask, dtype=np.uint8), image)
    return path


def _channels_first(array: Array, rank: int) -> Array:
    return np.moveaxis(array.reshape(*array.shape[:rank], -1), -1, 0)


def _read_picture(path: Path) -> Array:
    from PIL import Image as Pillow
    from PIL import ImageSequence

    with Pillow.open(path) as picture:
        several = picture.format == "TIFF" and getattr(picture, "n_frames", 1) > 1
        frames: Any = ImageSequence.Iterator(picture) if several else [picture]
        pages = [np.atleast_3d(np.asarray(_plain(frame))) for frame in frames]
    return np.moveaxis(pages[0] if len(pages) == 1 else np.stack(pages, axis=2), -1, 0)


def _plain(picture: Any) -> Any:
    if picture.mode == "LA":
        return picture.getchannel(0)
    return picture.convert("RGB") if picture.mode in ("RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "PA", "P") else picture


def _read_nifti(path: Path) -> tuple[Array, Array]:
    import nibabel

    image: Any = nibabel.load(path)
    return _channels_first(np.asanyarray(image.dataobj), len(image.shape[:3])), np.asarray(image.affine, dtype=float)


def _read_itk(path: Path) -> tuple[Array, Array]:
    import itk

    image = itk.imread(str(path))
    rank = min(image.GetImageDimension(), 3)
    array = itk.array_view_from_image(image).T  # ITK's arrays are (z, y, x), with components last
    if image.GetNumberOfComponentsPerPixel() > 1:
        array = np.moveaxis(array, 0, -1)
    affine = np.eye(4)
    affine[:rank, :rank] = itk.array_from_matrix(image.GetDirection())[:rank, :rank]
    affine[:rank, :rank] *= [float(image.GetSpacing()[axis]) for axis in range(rank)]
    affine[:rank, 3] = [float(image.GetOrigin()[axis]) for axis in range(rank)]
    return _channels_first(array, rank), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # ITK counts to the left and back


def _write_picture(path: Path, mask: Array, image: Path) -> None:  # noqa: ARG001
    from PIL import Image as Pillow

    pages: Sequence[Array] = [mask] if mask.ndim == 2 else list(np.moveaxis(mask, 2, 0))
    first, *rest = (Pillow.fromarray(page) for page in pages)
    options: dict[str, Any] = {"save_all": True, "append_images": rest} if rest else {}
    first.save(path, **options)


def _write_nifti(path: Path, mask: Array, image: Path) -> None:
    import nibabel

    like: Any = nibabel.load(image)
    header = like.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    nibabel.save(type(like)(mask, like.affine, header), path)


def _write_itk(path: Path, mask: Array, image: Path) -> None:
    import itk

    like = itk.imread(str(image))
    written = itk.image_from_array(np.ascontiguousarray(mask.T))
    axes = range(mask.ndim)
    written.SetSpacing([float(like.GetSpacing()[axis]) for axis in axes])
    written.SetOrigin([float(like.GetOrigin()[axis]) for axis in axes])
    direction = itk.array_from_matrix(like.GetDirection())[: mask.ndim, : mask.ndim]
    written.SetDirection(itk.matrix_from_array(np.ascontiguousarray(direction)))
    itk.imwrite(written, str(path), compression=True)
