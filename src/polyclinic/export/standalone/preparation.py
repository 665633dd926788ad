"""From an image to what the network sees, and back to the image's own grid: orientation, spacing, intensity, size.

Every step notes how a voxel of its result is placed among the voxels of the file (``grid``, a matrix from prepared to
file indices), so that the way back is one linear resampling. Nothing here needs more than numpy, but volumes that know
their orientation are turned by nibabel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from polyclinic.export.standalone.image_files import Image
from polyclinic.export.standalone.resampling import along, resampled
from polyclinic.export.standalone.site_intensity import Moments, intensity_of, moments_of, standardised

Array = np.ndarray[Any, np.dtype[Any]]
_AXES = (("L", "R"), ("P", "A"), ("I", "S"))
_SAME = 1e-3  # of a voxel or a millimetre: what counts as no movement at all


@dataclass(frozen=True)
class Prepared:
    """What the network sees of an image, ``samples`` ``(sample, channel, *spatial)``: one, or one for each slice.

    ``shape`` is the file's, ``prepared_shape`` that of the whole prepared image, ``grid`` leads from its indices to
    the file's, and ``slice_axis`` is the axis that samples were cut along.
    """

    samples: Array
    shape: tuple[int, ...]
    prepared_shape: tuple[int, ...]
    grid: Array
    slice_axis: int | None


def prepare(image: Image, settings: dict[str, Any]) -> Prepared:
    """What the network sees of an image; ``settings`` is the content of ``model.json``."""
    steps, shape = settings["preprocessing"], image.voxels.shape[1:]
    voxels, grid = on_common_grid(image, settings)
    site = None
    if steps["intensity"] == "site":
        site = steps["site_intensity"] or intensity_of([_moments(voxels, image, steps)], steps["intensity_statistics"])
    slice_axis = settings["slice_axis"] if len(shape) > settings["spatial_dims"] else None
    if steps["crop"] is not None:
        voxels, grid = cut(voxels, _target(steps["crop"], voxels, slice_axis), grid)
    if steps["size"] is not None:
        target = _target(steps["size"], voxels, slice_axis)
        voxels, grid = (padded_and_cut if steps["fit"] == "pad-crop" else resized)(voxels, target, grid)
    if site is not None:
        voxels = standardised(voxels, site["mean"], site["deviation"], steps["nonzero"], image.absent)
    samples = _samples(voxels, slice_axis, settings["neighbours"])
    return Prepared(samples.astype(np.float32), shape, voxels.shape[1:], grid, slice_axis)


def image_moments(image: Image, settings: dict[str, Any]) -> Moments:
    """What an image adds to the mean and deviation of several."""
    return _moments(on_common_grid(image, settings)[0], image, settings["preprocessing"])


def _moments(voxels: Array, image: Image, steps: dict[str, Any]) -> Moments:
    return moments_of(voxels, steps["nonzero"], image.absent)


def on_common_grid(image: Image, settings: dict[str, Any]) -> tuple[Array, Array]:
    """The voxels ``(channel, *spatial)`` after orientation, spacing and intensity, and their ``grid``."""
    voxels, affine = image.voxels, image.affine
    steps, rank = settings["preprocessing"], voxels.ndim - 1
    dims, nominal = settings["spatial_dims"], settings["file_spacing"]
    if rank < dims or (rank > dims and not settings["volumes_as_slices"]):
        raise ValueError(f"the image has {rank} axes, but the model is for images with {dims}.")
    nominal = nominal if nominal is not None and len(nominal) == rank else None
    place = np.diag([*(nominal or ()), *[1.0] * (4 - len(nominal or ()))]) if affine is None else affine
    grid = np.eye(rank + 1)
    if rank == 3 and affine is not None:
        voxels, grid = oriented(voxels, affine, steps["orientation"])
    if steps["spacing"] is not None:
        if affine is None and nominal is None:
            raise ValueError("the model needs images that know their spacing, and this file does not.")
        voxels, grid = respaced(voxels, reduced(place, rank) @ grid, steps["spacing"], grid)
    # Only of pictures: volumes of one site may be of several integer types, whose numbers mean the same.
    highest = image.highest if steps["intensity"] != "site" or image.picture else None
    return scaled(voxels.astype(np.float32), steps, highest), grid


def to_file_grid(probabilities: Array, prepared: Prepared) -> Array:
    """Probabilities ``(sample, class, *spatial)`` on the file's own grid, ``(class, *spatial)``.

    Voxels that a crop had cut off are background, which is class 0.
    """
    whole = probabilities[0] if prepared.slice_axis is None else np.moveaxis(probabilities, 0, prepared.slice_axis + 1)
    if prepared.shape == prepared.prepared_shape and np.allclose(prepared.grid, np.eye(len(prepared.grid)), atol=_SAME):
        return whole
    back = np.linalg.inv(prepared.grid)
    result, outside = resampled(whole, back, prepared.shape), ~_inside(back, prepared)
    result[:, outside] = 0
    result[0, outside] = 1
    return result


def reduced(affine: Array, rank: int) -> Array:
    """The affine of the first ``rank`` axes: ``(rank + 1, rank + 1)``."""
    kept = [*range(rank), 3]
    return np.asarray(affine, dtype=float)[np.ix_(kept, kept)]


def oriented(voxels: Array, affine: Array, codes: str) -> tuple[Array, Array]:
    """Turn a volume ``(channel, x, y, z)`` to axis codes such as RAS."""
    from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform

    turn = ornt_transform(io_orientation(affine), axcodes2ornt(codes, labels=_AXES))
    turned = np.stack([apply_orientation(channel, turn) for channel in voxels])
    return turned, np.asarray(inv_ornt_aff(turn, voxels.shape[1:]), dtype=float)


def respaced(voxels: Array, affine: Array, spacing: Sequence[float], grid: Array) -> tuple[Array, Array]:
    """Resample to millimetres along each axis; a shear is straightened."""
    rank = len(spacing)
    now = np.linalg.norm(affine[:rank, :rank], axis=0)
    wanted = np.where(np.abs(now - spacing) <= _SAME, now, spacing)
    upper = np.linalg.cholesky(affine[:rank, :rank].T @ affine[:rank, :rank]).T
    target = np.eye(rank + 1)
    target[:rank, :rank] = affine[:rank, :rank] @ np.linalg.inv(upper) @ np.diag(np.sign(np.diag(upper)) * wanted)
    ends = np.array(list(product(*((0.0, size - 1.0) for size in voxels.shape[1:])))).T
    corners = np.vstack([ends, np.ones((1, ends.shape[1]))])
    placed = np.linalg.solve(target, affine) @ corners
    shape = tuple(int(size) for size in np.round(np.ptp(placed[:rank], axis=1) + 1))
    first = [np.allclose(np.min(placed[:rank] - placed[:rank, [i]], axis=1), 0, rtol=1e-3) for i in range(len(ends.T))]
    if any(first):
        target[:rank, rank] = (affine @ corners)[:rank, first.index(True)]
    else:
        middle = affine[:rank, :rank] @ (np.array(voxels.shape[1:]) / 2) + affine[:rank, rank]
        target[:rank, rank] = middle - target[:rank, :rank] @ (np.array(shape) / 2)
    step = np.linalg.solve(affine, target)
    if shape == voxels.shape[1:] and (
        np.allclose(affine, target, atol=_SAME) or np.allclose(step, np.eye(rank + 1), atol=_SAME)
    ):
        return voxels, grid
    return resampled(voxels, step, shape).astype(np.float32), grid @ step


def scaled(voxels: Array, steps: dict[str, Any], highest: float | None) -> Array:
    """Scale intensities ``(channel, *spatial)``: each channel by its own values, or all from 0 to ``highest``."""
    way = steps["intensity"]
    if way == "full-range":
        if highest is None:
            raise ValueError("the model needs unsigned integers such as the bytes of a picture.")
        return voxels / np.float32(highest)
    if way == "site":
        return voxels if highest is None else voxels / np.float32(highest)
    return voxels if way == "none" else np.stack([_scaled_channel(channel, way, steps) for channel in voxels])


def _scaled_channel(channel: Array, way: str, steps: dict[str, Any]) -> Array:
    if way == "z-score":
        mask = channel != 0 if steps["nonzero"] else np.ones(channel.shape, dtype=bool)
        values = channel[mask].astype(np.float64)
        if not values.size:
            return channel
        result = channel.copy()
        result[mask] = (values - values.mean()) / (values.std() or 1.0)
        return result
    low, high = (channel.min(), channel.max()) if way == "zero-one" else np.percentile(channel, steps["percentiles"])
    if low == high:
        return channel - np.float32(low)
    result = np.clip((channel - np.float32(low)) / (np.float32(high) - np.float32(low)), 0, 1)
    return np.asarray(result)


def cut(voxels: Array, target: Sequence[int], grid: Array) -> tuple[Array, Array]:
    """Cut ``target`` voxels out of the middle; what is smaller stays."""
    starts = [max(size // 2 - want // 2, 0) for size, want in zip(voxels.shape[1:], target, strict=True)]
    places = tuple(slice(start, start + want) for start, want in zip(starts, target, strict=True))
    return voxels[(slice(None), *places)], grid @ _moved(starts)


def padded_and_cut(voxels: Array, target: Sequence[int], grid: Array) -> tuple[Array, Array]:
    """Cut the middle out along axes that are too long, and put zeros around those that are too short."""
    voxels, grid = cut(voxels, target, grid)
    missing = [want - size for size, want in zip(voxels.shape[1:], target, strict=True)]
    widths = [(0, 0), *((lack // 2, lack - lack // 2) for lack in missing)]
    return np.pad(voxels, widths), grid @ _moved([-(lack // 2) for lack in missing])


def resized(voxels: Array, target: Sequence[int], grid: Array) -> tuple[Array, Array]:
    """Bring to a size: means where an axis shrinks, linear where it grows."""
    for axis, (size, want) in enumerate(zip(voxels.shape[1:], target, strict=True), 1):
        if want < size:
            bounds = [(index * size // want, -(-(index + 1) * size // want)) for index in range(want)]
            means = [voxels.take(range(*bound), axis).mean(axis, dtype=np.float64) for bound in bounds]
            voxels = np.stack(means, axis)
        elif want > size:
            voxels = along(voxels, axis, (np.arange(want) + 0.5) * (size / want) - 0.5)
        scale = np.eye(len(grid))
        scale[axis - 1, axis - 1], scale[axis - 1, -1] = size / want, (size / want - 1) / 2
        grid = grid @ scale
    return voxels, grid


def _inside(back: Array, prepared: Prepared) -> Array:
    """Which voxels ``(*spatial)`` of the file lie in the prepared image, whose voxels reach half a step outward."""
    axes = np.ogrid[tuple(slice(size) for size in prepared.shape)]
    inside = np.ones(prepared.shape, dtype=bool)
    for row, size in zip(back[:-1], prepared.prepared_shape, strict=True):
        place = row[-1] + sum(step * axis for step, axis in zip(row, axes, strict=False) if abs(step) > 1e-9)
        inside &= (place > -0.501) & (place < size - 0.499)
    return inside


def _samples(voxels: Array, slice_axis: int | None, neighbours: int) -> Array:
    """``(sample, channel, *spatial)``; slices have their neighbours as channels, the edge ones themselves."""
    if slice_axis is None:
        return np.tile(voxels, (2 * neighbours + 1, *[1] * (voxels.ndim - 1)))[None]
    slices = np.moveaxis(voxels, slice_axis + 1, 0)
    beside = [np.clip(np.arange(len(slices)) + step, 0, len(slices) - 1) for step in range(-neighbours, neighbours + 1)]
    return np.concatenate([slices[index] for index in beside], axis=1)


def _target(size: Sequence[int], voxels: Array, slice_axis: int | None) -> list[int]:
    target = list(size)
    if slice_axis is not None:
        target.insert(slice_axis, voxels.shape[slice_axis + 1])
    return target


def _moved(starts: Sequence[int]) -> Array:
    matrix = np.eye(len(starts) + 1)
    matrix[:-1, -1] = starts
    return matrix
