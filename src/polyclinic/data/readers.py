"""Images and labels as arrays, checked against the task: a wrong file gets a sentence, not a silent repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item, Task
from polyclinic.data.formats import Header, is_picture, read_array, read_header, spacing_of


@dataclass(frozen=True)
class Image:
    """Voxels ``(channel, *spatial)`` in float32, and where they lie: a 4x4 affine, millimetres along each axis.

    ``highest`` is the largest number that the file could hold, if it holds unsigned integers.
    """

    array: npt.NDArray[np.float32]
    affine: npt.NDArray[np.float64] | None
    spacing: tuple[float, ...] | None
    highest: float | None = None


def read_image(item: Item, task: Task) -> Image:
    """Read an image as ``(channel, *spatial)`` with the task's number of channels.

    Grey stored as equal RGB channels becomes one channel for a task with one; a grey picture is repeated for a task
    with three. A channel that is missing (``item.places``) is zeros.
    """
    files = [read_array(path) for path in item.images]
    for path, array in zip(item.images, files, strict=True):
        if array.shape[1:] != files[0].shape[1:]:
            raise PolyclinicError(
                f"{path}: has the size {_size(array)}, but {item.images[0].name} has {_size(files[0])}; "
                "the channels of an image must agree."
            )
    array = files[0] if len(files) == 1 else np.concatenate(files)
    if item.places:
        array = _placed(item, array, task.image_channels)
    highest = float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else None
    array = _fit_channels(item.images[0], array, task.image_channels).astype(np.float32)
    if not np.isfinite(array).all():
        raise PolyclinicError(f"{item.images[0]}: holds NaN or infinite values; replace them or take the image out.")
    if array.ndim - 1 < task.spatial_dims:
        raise PolyclinicError(
            f"{item.images[0]}: is 2D, but the task is 3D; take it out or write spatial_dims = 2 in federation.toml."
        )
    affine = read_header(item.images[0]).affine
    rank = array.ndim - 1
    spacing = task.nominal_spacing(rank) if affine is None else spacing_of(affine, rank)
    return Image(array, affine, spacing, highest)


def read_label(item: Item, task: Task, image: Header | None = None) -> npt.NDArray[np.uint8]:
    """Read a label as classes ``(*spatial)``; 255 counts as 1 in a label of a binary task that holds only 0 and 255.

    ``image`` is the header of the label's image, for whoever has read it already.
    """
    path = item.label
    if path is None:
        raise PolyclinicError(f"{item.images[0]}: has no label; add one to the site's labels folder.")
    array = read_array(path, label=True)
    if (array != array[:1]).any():
        raise PolyclinicError(
            f"{path}: is a label with channels that differ; store one class number a voxel in a single channel."
        )
    _check_geometry(item, image or read_header(item.images[0]), path, array)
    count = len(task.classes)
    if item.label_values is not None:
        classes, unknown = item.label_values.classes_of(array[0])
        _refuse_values(path, unknown, "expected those of [labels] in federation.toml, so add them there")
        return classes
    values = np.unique(array[0])
    if count == 2 and 255 in values and set(values.tolist()) <= {0, 255}:
        return np.array(array[0] != 0, dtype=np.uint8)
    advice = (
        f"expected 0 to {count - 1} ({', '.join(task.classes)}), so correct the file, or the classes or [labels] in "
        "federation.toml"
    )
    _refuse_values(path, [value for value in values.tolist() if value not in range(count)], advice)
    return np.array(array[0], dtype=np.uint8)


def _refuse_values(path: Path, wrong: list[float], advice: str) -> None:
    if wrong:
        listed = ", ".join(f"{value:g}" for value in wrong[:8]) + (" and others" if len(wrong) > 8 else "")
        raise PolyclinicError(f"{path}: holds the undeclared label values {listed}; {advice}.")


def _placed(item: Item, array: npt.NDArray[Any], wanted: int) -> npt.NDArray[Any]:
    """The channels of an image at their places ``(channel, *spatial)``, zeros where there is none."""
    if len(array) != len(item.places) or max(item.places) >= wanted:
        raise PolyclinicError(
            f"{item.images[0]}: its files hold {len(array)} channels and are numbered up to {max(item.places):04d}, "
            f"but the task has {wanted}; store one channel a file, or write 'channels' in federation.toml."
        )
    placed = np.zeros((wanted, *array.shape[1:]), dtype=array.dtype)
    placed[list(item.places)] = array
    return placed


def _fit_channels(path: Path, array: npt.NDArray[Any], wanted: int) -> npt.NDArray[Any]:
    count = len(array)
    if count == wanted:
        return array
    if wanted == 1 and (array == array[:1]).all():
        return array[:1]
    if wanted == 3 and count == 1 and is_picture(path):
        return np.repeat(array, 3, axis=0)
    advice = "convert it to grey" if wanted == 1 else "correct it"
    raise PolyclinicError(
        f"{path}: has {count} {'channel' if count == 1 else 'channels'}, but the task has {wanted}; "
        f"{advice} or write 'channels' in federation.toml."
    )


def _check_geometry(item: Item, image: Header, path: Path, array: npt.NDArray[Any]) -> None:
    if array.shape[1:] != image.shape:
        expected = "x".join(map(str, image.shape))
        raise PolyclinicError(
            f"{path}: the label has the size {_size(array)}, but its image {item.images[0].name} has {expected}; "
            "store the label on the image's grid."
        )
    if image.affine is None or len(image.shape) < 3 or (affine := read_header(path).affine) is None:
        return
    from nibabel.orientations import aff2axcodes

    codes, expected_codes = ("".join(aff2axcodes(matrix)) for matrix in (affine, image.affine))
    if codes != expected_codes:
        raise PolyclinicError(
            f"{path}: the label's axes are {codes}, but those of its image are {expected_codes}; "
            "store the label with the image's affine."
        )


def _size(array: npt.NDArray[Any]) -> str:
    return "x".join(map(str, array.shape[1:]))
