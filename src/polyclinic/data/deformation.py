"""Batched deformation: mirroring, rotation, scaling, translation and elastic shifts in one sampling grid.

Coordinates are those of ``torch.nn.functional.grid_sample`` with ``align_corners=False``: -1 and 1 are the outer edges
of an image, and its ``(x, y, z)`` run against the order of the spatial axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import radians
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.recipe import AugmentationSettings


@dataclass(frozen=True)
class Deformation:
    """What happens to the coordinates of a batch: drawn once, applied to as many tensors as share them.

    ``mirrored`` lists spatial axes (negative) and the samples that are only mirrored along them, which needs no
    interpolation. ``warped`` are the samples that are resampled at ``grid`` ``(warped, *spatial, dims)``, mirroring
    included, all of it inside of the image (``reflected``). All other samples stay as they are.
    """

    dims: int
    mirrored: tuple[tuple[tuple[int, ...], Tensor], ...] = ()
    warped: Tensor | None = None
    grid: Tensor | None = None

    def apply(self, images: Tensor, mode: Literal["linear", "nearest"] = "linear") -> Tensor:
        """Move ``(batch, channel, *spatial)`` or ``(batch, *spatial)``; integers, such as labels, need ``nearest``."""
        if mode == "linear" and not images.is_floating_point():
            raise ValueError(f"integers cannot be interpolated linearly, got {images.dtype}; pass mode='nearest'")
        if not self.mirrored and self.grid is None:
            return images
        if self.grid is not None and len(self.grid) == len(images):
            return self._warp(images, self.grid, mode)
        result = images.clone()
        for axes, rows in self.mirrored:
            result[rows] = images[rows].flip(axes)
        if self.grid is not None:
            result[self.warped] = self._warp(images[self.warped], self.grid, mode)
        return result

    def _warp(self, images: Tensor, grid: Tensor, mode: str) -> Tensor:
        dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
        channels = images if images.ndim == self.dims + 2 else images.unsqueeze(1)
        moved = F.grid_sample(
            channels.to(dtype),
            grid.to(dtype),
            mode="nearest" if mode == "nearest" else "bilinear",
            padding_mode="border",
            align_corners=False,
        )
        return moved.reshape(images.shape).to(images.dtype)


@torch.no_grad()
def draw_deformation(
    settings: AugmentationSettings, shape: Sequence[int], generator: torch.Generator, device: torch.device | str = "cpu"
) -> Deformation:
    """Draw a deformation for images of ``shape`` ``(batch, channel, *spatial)``.

    All numbers come from the CPU ``generator``, so that they are the same for every ``device``.
    """
    batch, spatial = shape[0], tuple(shape[2:])
    dims = len(spatial)
    if not settings.moves:
        return Deformation(dims)
    flips = coins(settings.flip, (batch, dims), generator)
    affine = coins(settings.affine, (batch,), generator)
    elastic = coins(settings.elastic, (batch,), generator)
    warped = affine | elastic
    theta = _draw_affine(settings, affine, spatial, generator)
    controls = _draw_controls(settings, elastic, dims, generator)
    mirrored = _mirrored(flips, ~warped, device)
    rows = warped.nonzero()[:, 0]
    if not len(rows):
        return Deformation(dims, mirrored)
    theta = theta * (1 - 2 * flips.flip(1).float()).unsqueeze(2)
    # Half precision cannot tell neighbouring voxels apart, so autocast must not touch the grid.
    with torch.autocast(torch.device(device).type, enabled=False):
        places = _affine_places(theta[rows].to(device), spatial)
        if controls is not None:
            places += _displacement(controls[rows].to(device), spatial)
        grid = reflected(places).movedim(1, -1)
    return Deformation(dims, mirrored, rows.to(device), grid)


def reflected(places: Tensor) -> Tensor:
    """Coordinates of any shape, mirrored at the image's edges until they lie from -1 to 1.

    Reflection, like MONAI's RandAffine: what comes in from outside looks like tissue and its label goes with it,
    whatever the intensity scale of the images. Here, because ``grid_sample`` does it voxel by voxel for every tensor
    that moves: in 3D that takes longer than the sampling.
    """
    # The share of a period of 4, which unlike a remainder is computed many numbers at a time.
    return 1 - (places + 1).abs_().mul_(0.25).frac_().mul_(4).sub_(2).abs_()


def coins(probability: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent coins (bool, on the CPU) that fall true with ``probability``; nothing is drawn when it is 0."""
    if probability == 0:
        return torch.zeros(shape, dtype=torch.bool)
    return torch.rand(shape, generator=generator) < probability


def uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers from ``low`` to ``high``, on the CPU."""
    return low + (high - low) * torch.rand(shape, generator=generator)


def affine_matrices(angles: Tensor, scales: Tensor, shifts: Tensor, spatial: Sequence[int]) -> Tensor:
    """Sampling matrices ``(batch, dims, dims + 1)`` in normalised coordinates.

    ``angles`` ``(batch, planes)`` in radians, one for each pair of axes (1 in 2D, 3 in 3D); ``scales`` ``(batch,)``,
    above 1 enlarges; ``shifts`` ``(batch, dims)`` as a share of the image, in the order of the spatial axes. Rotation
    is rigid in pixels: an image twice as wide as high is not sheared.
    """
    dims = len(spatial)
    rotation = torch.eye(dims).repeat(len(angles), 1, 1)
    for angle, (first, second) in zip(angles.unbind(1), combinations(range(dims), 2), strict=True):
        turn = torch.eye(dims).repeat(len(angles), 1, 1)
        turn[:, first, first] = turn[:, second, second] = angle.cos()
        turn[:, first, second], turn[:, second, first] = -angle.sin(), angle.sin()
        # A matrix product that autocast leaves in full precision.
        rotation = (rotation.unsqueeze(3) * turn.unsqueeze(1)).sum(2)
    sizes = torch.tensor([float(size) for size in reversed(spatial)])
    linear = rotation / scales[:, None, None] * sizes / sizes[:, None]
    return torch.cat([linear, -2 * shifts.flip(1).unsqueeze(2)], dim=2)


def _draw_affine(
    settings: AugmentationSettings, chosen: Tensor, spatial: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Sampling matrices, the identity for samples that are not ``chosen``."""
    batch, dims = len(chosen), len(spatial)
    if not settings.affine:
        return torch.eye(dims, dims + 1).repeat(batch, 1, 1)
    limit, planes = radians(settings.rotation), dims * (dims - 1) // 2
    angles = uniform(-limit, limit, (batch, planes), generator) * chosen.unsqueeze(1)
    scales = 1 + uniform(-settings.scaling, settings.scaling, (batch,), generator) * chosen
    shifts = uniform(-settings.translation, settings.translation, (batch, dims), generator) * chosen.unsqueeze(1)
    return affine_matrices(angles, scales, shifts, spatial)


def _draw_controls(
    settings: AugmentationSettings, chosen: Tensor, dims: int, generator: torch.Generator
) -> Tensor | None:
    """Shifts of the control points ``(batch, dims, *points)``, 0 for samples that are not ``chosen``."""
    if not settings.elastic:
        return None
    shape = (len(chosen), dims, *[settings.elastic_grid] * dims)
    # An image is 2 wide in normalised coordinates.
    controls = torch.randn(shape, generator=generator) * (2 * settings.elastic_strength)
    return controls * chosen.view(-1, *[1] * (dims + 1))


def _affine_places(theta: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """Where each voxel is sampled, ``(batch, dims, *spatial)``, by matrices ``(batch, dims, dims + 1)``.

    ``affine_grid`` gives the same by a matrix product for each voxel; sums of one vector an axis take a tenth of that.
    """
    dims = len(spatial)
    places = theta[:, :, dims].view(*theta.shape[:2], *[1] * dims)
    for axis, size in enumerate(spatial):
        centres = (2 * torch.arange(size, device=theta.device) + 1) / size - 1
        along = [size if other == axis else 1 for other in range(dims)]
        column = theta[:, :, dims - 1 - axis].view(*theta.shape[:2], *[1] * dims)
        places = places + column * centres.view(along)
    return places


def _displacement(controls: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """``(batch, dims, *points)`` to ``(batch, dims, *spatial)``, by cubic interpolation along each axis."""
    field = controls
    for size in spatial:
        # PyTorch has no tricubic interpolation, but cubic interpolation is separable: one small matrix for each axis.
        field = torch.tensordot(field, _cubic_basis(field.shape[2], size).to(field.device), dims=([2], [0]))
    return field


@cache
def _cubic_basis(points: int, size: int) -> Tensor:
    """The weight of every control point at every voxel of an axis, ``(points, size)``."""
    one_hot = torch.eye(points)[None, None]
    return F.interpolate(one_hot, size=(points, size), mode="bicubic", align_corners=True)[0, 0]


def _mirrored(flips: Tensor, allowed: Tensor, device: torch.device | str) -> tuple[tuple[tuple[int, ...], Tensor], ...]:
    """Group the allowed samples of ``flips`` ``(batch, dims)`` by the axes along which they are mirrored."""
    dims = flips.shape[1]
    groups = []
    for count in range(1, dims + 1):
        for axes in combinations(range(dims), count):
            pattern = torch.tensor([axis in axes for axis in range(dims)])
            rows = ((flips == pattern).all(1) & allowed).nonzero()[:, 0]
            if len(rows):
                groups.append((tuple(axis - dims for axis in axes), rows.to(device)))
    return tuple(groups)
