"""Image files, items and federations for the tests of polyclinic.data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from PIL import Image as PILImage

from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.preprocessing import Prepared


def write_picture(path: Path, array: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PILImage.fromarray(np.asarray(array, dtype=np.uint8)).save(path)


def file_item(image: Path, label: Path | None = None) -> Item:
    """The only image of a site."""
    return Item("site", "x", (image,), label, "x")


def saved(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    """A picture in the type of the array, or in one of Pillow's modes."""
    picture = PILImage.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path)
    return path


def nifti(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


def write_volume(path: Path, shape: tuple[int, ...] = (6, 5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), path)


def two_sites(root: Path) -> Path:
    for site in ("north", "east"):
        for name in ("a", "b", "c"):
            write_picture(root / site / "images" / f"{name}.png", np.zeros((8, 6, 3)))
            if name != "c":
                write_picture(root / site / "labels" / f"{name}.png", np.eye(8, 6) * 255)
    return root


def federation_of(
    dims: int,
    *items: Item,
    classes: int = 3,
    channels: int = 1,
    neighbours: int = 0,
    sliced: bool = False,
    spacing: tuple[float, ...] | None = None,
) -> Federation:
    """A federation of one site ``a`` with these images."""
    task = Task(tuple(f"c{i}" for i in range(classes)), channels * (2 * neighbours + 1), dims, "", neighbours, spacing)
    return Federation("test", task, {"a": items}, Path("root"), sliced)


def picture_item(folder: Path, array: np.ndarray, label: np.ndarray | None = None, name: str = "x") -> Item:
    image = folder / f"{name}.png"
    PILImage.fromarray(array).save(image)
    if label is not None:
        PILImage.fromarray(label.astype(np.uint8)).save(folder / f"{name}_label.png")
    return Item("a", name, (image,), None if label is None else folder / f"{name}_label.png", name)


def volume_item(
    folder: Path, array: np.ndarray, label: np.ndarray | None = None, affine: Any = None, name: str = "x"
) -> Item:
    affine = np.eye(4) if affine is None else affine
    nibabel.save(nibabel.Nifti1Image(array, affine), folder / f"{name}.nii")
    if label is not None:
        nibabel.save(nibabel.Nifti1Image(label.astype(np.uint8), affine), folder / f"{name}_label.nii")
    return Item("a", name, (folder / f"{name}.nii",), None if label is None else folder / f"{name}_label.nii", name)


def blobs(shape: tuple[int, ...]) -> np.ndarray:
    """Two ellipsoids, off the centre and unequal along the axes, as classes 1 and 2."""
    grid = np.meshgrid(*[np.linspace(0, 1, n) for n in shape], indexing="ij")
    centre, radius = (0.35, 0.45, 0.55), (0.28, 0.33, 0.4)
    inside = sum(((g - c) / r) ** 2 for g, c, r in zip(grid, centre, radius, strict=False))
    return np.where(inside < 0.3, 2, np.where(inside < 1, 1, 0)).astype(np.uint8)


def one_hot(prepared: list[Prepared], classes: int = 3) -> torch.Tensor:
    """A perfect prediction for prepared labels, in the shape that ``to_file_grid`` takes."""
    masks = [torch.nn.functional.one_hot(p.label.long(), classes).movedim(-1, 0).float() for p in prepared]
    return masks[0] if prepared[0].slice_index is None else torch.stack(masks)


def dice(one: np.ndarray, two: np.ndarray, value: int) -> float:
    return float(2 * ((one == value) & (two == value)).sum() / ((one == value).sum() + (two == value).sum()))
