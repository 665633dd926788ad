"""Pictures through Pillow: PNG, JPEG, TIFF, BMP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage
from PIL import ImageSequence

from polyclinic.data.formats.registry import Format, Header, register_format

_GREY_MODES = ("1", "L", "LA", "F")


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
    pages = []
    with PILImage.open(path) as picture:
        frames: Any = ImageSequence.Iterator(picture) if _pages(picture) > 1 else [picture]
        for frame in frames:
            frame.load()  # numpy would hide the error of a truncated file
            array = np.asarray(_plain(frame, label))
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


def _write_picture(path: Path, array: npt.NDArray[np.uint8], image: Path, suffix: str) -> None:  # noqa: ARG001
    pages = [array] if array.ndim == 2 else list(np.moveaxis(array, 2, 0))
    first, *rest = (PILImage.fromarray(page) for page in pages)
    if suffix == ".png":
        first.save(path, format="PNG")
    else:
        first.save(path, format="TIFF", compression="tiff_deflate", save_all=bool(rest), append_images=rest)


register_format(
    Format(
        suffixes=(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"),
        read_header=_picture_header,
        read_array=_picture_array,
        write_mask=_write_picture,
        mask_suffixes={".jpg": ".png", ".jpeg": ".png", ".bmp": ".png"},
        picture=True,
    )
)
