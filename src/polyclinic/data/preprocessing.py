"""From files to prepared tensors: orientation, spacing, intensity, size, slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item
from polyclinic.data.formats import Header, is_picture
from polyclinic.data.intensity import scaled
from polyclinic.data.readers import read_image, read_label
from polyclinic.data.site_intensity import Moments, moments_of
from polyclinic.data.voxel_grid import (
    FileGrid,
    Geometry,
    crop_and_resize,
    file_affine,
    geometry_of,
    geometry_of_grid,
    orient_and_space,
    plain_voxels,
    to_file_grid,
    with_voxels,
)
from polyclinic.recipe import DataSettings

__all__ = ["Geometry", "Prepared", "geometry_of", "prepare", "resolve_size", "to_file_grid"]

_LARGEST_AUTO_SIZE = {2: 256, 3: 128}  # what size = "auto" gives at most, so that a first run fits a laptop


@dataclass(frozen=True)
class Prepared:
    """One prepared image ``(channel, *spatial)`` with its label ``(*spatial)`` in uint8, or None for unlabelled."""

    name: str
    image: Tensor
    label: Tensor | None
    spacing: tuple[float, ...] | None
    slice_index: int | None
    geometry: Geometry
    moments: Moments | None = None
    """Of the whole image, where its site's mean and deviation are still to be found."""


def resolve_size(federation: Federation, settings: DataSettings, multiple: int | Sequence[int]) -> tuple[int, ...]:
    """The size of prepared images ``(*spatial)``: the recipe's, or for ``size = "auto"`` one divisible by ``multiple``.

    That is the size of all images if they share one that is divisible, else their median, rounded.
    Reads the header of every image. ``multiple`` is one number, or one for each axis.
    """
    dims = federation.task.spatial_dims
    multiples = (multiple,) * dims if isinstance(multiple, int) else tuple(multiple)
    if settings.size != "auto":
        if len(settings.size) != dims:
            raise PolyclinicError(
                f"data.size: has {len(settings.size)} numbers, but the task is {dims}D; give one for each axis."
            )
        return settings.size
    sizes = [
        geometry_of(item, federation, settings).sample_shape for items in federation.sites.values() for item in items
    ]
    if len(set(sizes)) == 1 and not any(size % step for size, step in zip(sizes[0], multiples, strict=True)):
        return sizes[0]
    return tuple(
        _rounded(median(axis), step, _LARGEST_AUTO_SIZE[dims])
        for axis, step in zip(zip(*sizes, strict=True), multiples, strict=True)
    )


def _rounded(size: float, multiple: int, largest: int) -> int:
    nearest = multiple * int(size / multiple + 0.5)
    return max(2 * multiple, min(nearest, largest // multiple * multiple))


def prepare(item: Item, federation: Federation, settings: DataSettings) -> list[Prepared]:
    """Read and prepare an image: one for an image, one for each slice of a volume in a 2D task.

    Intensities are scaled over the whole image or volume, channel by channel; by the numbers of the site where
    ``federation`` has them, else these stay to be found: voxels are as they were, and their moments are given.
    ``size = "auto"`` keeps the image's own (resampled) size; ``resolve_size`` finds one size for all.
    """
    task = federation.task
    image = read_image(item, task)
    if settings.intensity == "full-range" and image.highest is None:
        raise PolyclinicError(
            f"{item.images[0]}: data.intensity = full-range needs unsigned integers such as the bytes of a picture; "
            "choose zero-one, percentile or z-score."
        )
    header = Header(image.array.shape[1:], len(image.array), image.affine)
    if len(header.shape) > task.spatial_dims and not federation.volumes_as_slices:
        raise PolyclinicError(f"{item.images[0]}: is a volume among 2D images; take it out or cut it into slices.")
    affine = torch.from_numpy(file_affine(header, task))
    grid = orient_and_space(FileGrid(torch.from_numpy(image.array), affine), header, task, settings)
    # Only pictures: volumes of one site may be of several integer types, whose numbers mean the same.
    highest = image.highest if settings.intensity != "site" or is_picture(item.images[0]) else None
    grid = with_voxels(grid, scaled(plain_voxels(grid), settings, highest))
    moments = _moments(item, plain_voxels(grid), federation, settings)
    grid = crop_and_resize(grid, task, settings)
    geometry = geometry_of_grid(header, task, settings, grid)
    voxels = plain_voxels(grid).float()
    if settings.intensity == "site" and moments is None:
        voxels = federation.intensity[item.site].scaled(voxels, _absent(item, voxels))
    label = None
    if item.label is not None:
        classes = torch.from_numpy(read_label(item, task, header)).float()[None]
        mask = orient_and_space(FileGrid(classes, affine), header, task, settings, label=True)
        label = plain_voxels(crop_and_resize(mask, task, settings, label=True))[0].round().to(torch.uint8)
    samples = _samples(item.name, voxels, label, geometry, task.neighbours)
    return samples if moments is None else [replace(sample, moments=moments) for sample in samples]


def _moments(item: Item, voxels: Tensor, federation: Federation, settings: DataSettings) -> Moments | None:
    """What the numbers of an image's site are made of, where they are not known yet."""
    if settings.intensity != "site" or item.site in federation.intensity:
        return None
    return moments_of(voxels, settings.nonzero, _absent(item, voxels))


def _absent(item: Item, voxels: Tensor) -> set[int]:
    """The channels ``(channel, *spatial)`` that have no file; they are zeros, and stay so."""
    return set(range(len(voxels))) - set(item.places) if item.places else set()


def _samples(name: str, image: Tensor, label: Tensor | None, geometry: Geometry, neighbours: int) -> list[Prepared]:
    spacing = geometry.sample_spacing
    if geometry.slice_axis is None:
        # A picture among volumes has no neighbours but itself.
        repeated = image.repeat(2 * neighbours + 1, *[1] * (image.ndim - 1)) if neighbours else image
        return [Prepared(name, repeated, label, spacing, None, geometry)]
    slices = image.movedim(geometry.slice_axis + 1, 0)
    masks = None if label is None else label.movedim(geometry.slice_axis, 0)
    count = len(slices)
    return [
        Prepared(
            name,
            slices[np.clip(range(index - neighbours, index + neighbours + 1), 0, count - 1)].flatten(0, 1),
            None if masks is None else masks[index],
            spacing,
            index,
            geometry,
        )
        for index in range(count)
    ]
