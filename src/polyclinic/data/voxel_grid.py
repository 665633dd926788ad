"""Where voxels lie: the way from a file's grid to the prepared grid, and back.

Every step keeps the affine of its grid (MONAI's ``MetaTensor``), so that the way back is one resampling from the
prepared affine to the file's, whatever flips, resamplings, crops and slices lie between. Pictures without an affine
count as lying on the identity. MONAI takes seconds to import, so it is imported by the first step that changes a grid:
an image that already has the wanted orientation and size never needs it (``FileGrid``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item, Task, item_header
from polyclinic.data.formats import Header, spacing_of
from polyclinic.recipe import DataSettings

_AXES = (("L", "R"), ("P", "A"), ("I", "S"))


@dataclass(frozen=True)
class Geometry:
    """A file's grid and the prepared one, which is cut into slices along ``slice_axis`` if that is set."""

    shape: tuple[int, ...]
    affine: npt.NDArray[np.float64]
    prepared_shape: tuple[int, ...]
    prepared_affine: npt.NDArray[np.float64]
    slice_axis: int | None
    in_millimetres: bool

    @property
    def samples(self) -> int:
        """How many prepared images come out: the slices, or one."""
        return 1 if self.slice_axis is None else self.prepared_shape[self.slice_axis]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The spatial shape of each of them."""
        return _without(self.prepared_shape, self.slice_axis)

    @property
    def sample_spacing(self) -> tuple[float, ...] | None:
        """Millimetres along each axis of a prepared image, or None where the files do not know."""
        return _without(self._spacing, self.slice_axis) if self.in_millimetres else None

    @property
    def slice_spacing(self) -> float | None:
        """Millimetres from one slice to the next, or None."""
        return self._spacing[self.slice_axis] if self.in_millimetres and self.slice_axis is not None else None

    @property
    def _spacing(self) -> tuple[float, ...]:
        return spacing_of(self.prepared_affine, len(self.prepared_shape))


@dataclass(frozen=True)
class FileGrid:
    """Voxels ``(channel, *spatial)`` on the grid of their file, with its affine ``(4, 4)``: nothing has moved yet."""

    voxels: Tensor
    affine: Tensor

    def peek_pending_shape(self) -> tuple[int, ...]:
        """``(*spatial)``, under the name that MONAI's tensors have for it."""
        return tuple(self.voxels.shape[1:])

    def peek_pending_affine(self) -> Tensor:
        """The affine, under the name that MONAI's tensors have for it."""
        return self.affine


def plain_voxels(grid: Any) -> Tensor:
    """The voxels of a grid, without its geometry."""
    voxels: Tensor = grid.voxels if isinstance(grid, FileGrid) else grid.as_tensor()
    return voxels


def with_voxels(grid: Any, voxels: Tensor) -> Any:
    """A grid with other voxels of the same shape."""
    return FileGrid(voxels, grid.affine) if isinstance(grid, FileGrid) else _meta_tensor(voxels, grid.affine)


def _meta_tensor(voxels: Tensor, affine: Tensor) -> Any:
    from monai.data import MetaTensor

    return MetaTensor(voxels, affine=affine)


def _movable(grid: Any) -> Any:
    """A grid as MONAI's transforms take it."""
    return _meta_tensor(grid.voxels, grid.affine) if isinstance(grid, FileGrid) else grid


def geometry_of(item: Item, federation: Federation, settings: DataSettings) -> Geometry:
    """The geometry of an image from its headers alone."""
    header = item_header(item)
    start = torch.from_numpy(file_affine(header, federation.task))
    # MONAI's lazy mode moves the affine and the shape, and no voxel: the tensor needs no memory.
    grid: Any = FileGrid(torch.zeros(()).expand(1, *header.shape), start)
    grid = crop_and_resize(
        orient_and_space(grid, header, federation.task, settings, lazy=True), federation.task, settings, lazy=True
    )
    return geometry_of_grid(header, federation.task, settings, grid)


def file_affine(header: Header, task: Task) -> npt.NDArray[np.float64]:
    """The affine of a file, the task's nominal spacing where it has none, else the identity."""
    if header.affine is not None:
        return header.affine
    spacing = task.nominal_spacing(len(header.shape)) or ()
    return np.diag([*spacing, *[1.0] * (4 - len(spacing))])


def orient_and_space(
    grid: Any, header: Header, task: Task, settings: DataSettings, label: bool = False, lazy: bool = False
) -> Any:
    """Bring ``(channel, *spatial)`` to the wanted orientation (volumes that know theirs) and spacing."""
    rank = len(header.shape)
    if rank == 3 and header.affine is not None:
        codes = (settings.orientation or "RAS").upper()
        if len(codes) != 3 or any(sum(code in pair for code in codes) != 1 for pair in _AXES):
            raise PolyclinicError(
                f"data.orientation: '{settings.orientation}' is not one of L or R, P or A, I or S for each axis; "
                "write RAS, for example."
            )
        if not isinstance(grid, FileGrid) or _axis_codes(header.affine) != codes:
            from monai.transforms import Orientation

            grid = Orientation(axcodes=codes, labels=_AXES, lazy=lazy)(_movable(grid))
    if settings.spacing is not None:
        if header.affine is None and task.nominal_spacing(rank) is None:
            raise PolyclinicError(
                "data.spacing: the files do not know their spacing; "
                "write 'spacing' in federation.toml or leave data.spacing out."
            )
        if len(settings.spacing) != rank:
            raise PolyclinicError(
                f"data.spacing: has {len(settings.spacing)} numbers, but the files have {rank} axes; give one for each."
            )
        from monai.transforms import Spacing

        mode = "nearest" if label else "bilinear"
        grid = Spacing(pixdim=settings.spacing, mode=mode, padding_mode="border", lazy=lazy)(_movable(grid))
    return grid


def crop_and_resize(grid: Any, task: Task, settings: DataSettings, label: bool = False, lazy: bool = False) -> Any:
    """Cut ``data.crop`` out of ``(channel, *spatial)`` and bring it to ``data.size``; ``"auto"`` keeps its own size."""
    if settings.crop is not None:
        grid = _cropped(grid, _target("data.crop", settings.crop, grid, task, settings), lazy)
    if settings.size == "auto":
        return grid
    target = _target("data.size", settings.size, grid, task, settings)
    shape = tuple(int(size) for size in grid.peek_pending_shape())
    if isinstance(grid, FileGrid) and list(shape) == target:
        return grid
    from monai.transforms import Resize, ResizeWithPadOrCrop

    grid = _movable(grid)
    if settings.fit == "pad-crop":
        return ResizeWithPadOrCrop(target, lazy=lazy)(grid)
    if label:
        return Resize(target, mode="nearest-exact", lazy=lazy)(grid)
    # Averaging where an axis shrinks (no aliasing), linear where it grows.
    smaller = [min(pair) for pair in zip(shape, target, strict=True)]
    linear = "trilinear" if len(shape) == 3 else "bilinear"
    for size, mode in ((smaller, "area"), (target, linear)):
        if list(grid.peek_pending_shape()) != size:
            grid = Resize(size, mode=mode, lazy=lazy)(grid)
    return grid


def _cropped(grid: Any, target: list[int], lazy: bool) -> Any:
    shape = grid.peek_pending_shape()
    if isinstance(grid, FileGrid) and all(size <= most for size, most in zip(shape, target, strict=True)):
        return grid
    from monai.transforms import CenterSpatialCrop

    return CenterSpatialCrop(target, lazy=lazy)(_movable(grid))


def _axis_codes(affine: npt.NDArray[np.float64]) -> str:
    from nibabel.orientations import aff2axcodes

    return "".join(aff2axcodes(affine))


def _target(key: str, size: tuple[int, ...], grid: Any, task: Task, settings: DataSettings) -> list[int]:
    """A size of the recipe for all axes of the grid: as many slices as there are."""
    if len(size) != task.spatial_dims:
        raise PolyclinicError(
            f"{key}: has {len(size)} numbers, but the task is {task.spatial_dims}D; give one for each axis."
        )
    shape, target = grid.peek_pending_shape(), list(size)
    if len(shape) > task.spatial_dims:
        target.insert(settings.slice_axis, int(shape[settings.slice_axis]))
    return target


def geometry_of_grid(header: Header, task: Task, settings: DataSettings, grid: Any) -> Geometry:
    """The geometry of a grid that came out of ``place`` and ``fit``."""
    known = header.affine is not None or task.nominal_spacing(len(header.shape)) is not None
    return Geometry(
        header.shape,
        file_affine(header, task),
        tuple(int(size) for size in grid.peek_pending_shape()),
        np.asarray(grid.peek_pending_affine(), dtype=float),
        settings.slice_axis if len(header.shape) > task.spatial_dims else None,
        known,
    )


def to_file_grid(prediction: Tensor, geometry: Geometry) -> npt.NDArray[np.uint8]:
    """Bring a prediction back to its file's own grid, as classes ``(*spatial)``.

    ``prediction`` holds probabilities (or logits) on the prepared grid: ``(class, *spatial)``, or
    ``(slice, class, *plane)`` for a volume that was cut into slices. It is interpolated linearly, then the largest
    class wins; voxels that a crop had cut off are background.
    """
    back, moved = _on_file_grid(prediction, geometry)
    classes = np.asarray(back.argmax(0).to(torch.uint8).numpy())
    return np.where(_seen(geometry), classes, 0).astype(np.uint8) if moved else classes


def probabilities_on_file_grid(prediction: Tensor, geometry: Geometry) -> npt.NDArray[np.float32]:
    """Probabilities ``(class, *spatial)`` on a file's own grid, whose largest are the classes of ``to_file_grid``.

    ``prediction`` is as there; voxels that a crop had cut off are background with certainty.
    """
    back, moved = _on_file_grid(prediction, geometry)
    probabilities = np.array(back.numpy(), dtype=np.float32)
    if moved:
        unseen = ~_seen(geometry)
        probabilities[:, unseen] = 0
        probabilities[0, unseen] = 1
    return probabilities


def _on_file_grid(prediction: Tensor, geometry: Geometry) -> tuple[Tensor, bool]:
    """A prediction as ``(class, *spatial)`` on its file's grid, and whether that is another one than the prepared."""
    if geometry.slice_axis is not None:
        prediction = prediction.movedim(0, geometry.slice_axis + 1)
    if tuple(prediction.shape[1:]) != geometry.prepared_shape:
        raise ValueError(f"prediction on the grid {tuple(prediction.shape[1:])}, expected {geometry.prepared_shape}")
    prediction = prediction.detach().float().cpu()
    if geometry.shape == geometry.prepared_shape and np.allclose(geometry.affine, geometry.prepared_affine, atol=1e-6):
        return prediction, False
    from monai.transforms import SpatialResample

    grid = _meta_tensor(prediction, torch.from_numpy(geometry.prepared_affine))
    back = SpatialResample(mode="bilinear", padding_mode="border")
    grid = back(grid, dst_affine=torch.from_numpy(geometry.affine), spatial_size=geometry.shape)
    resampled: Tensor = grid.as_tensor()
    return resampled, True


def _seen(geometry: Geometry) -> npt.NDArray[np.bool_]:
    """Which voxels ``(*spatial)`` of the file lie inside the prepared grid, whose voxels reach half a step outward."""
    relative = np.linalg.inv(geometry.prepared_affine) @ geometry.affine
    axes = np.ogrid[tuple(slice(size) for size in geometry.shape)]
    seen = np.ones(geometry.shape, dtype=bool)
    for row, size in zip(relative, geometry.prepared_shape, strict=False):
        place = row[3] + sum(step * axis for step, axis in zip(row, axes, strict=False) if abs(step) > 1e-9)
        seen &= (place > -0.501) & (place < size - 0.499)
    return seen


def _without(values: tuple[Any, ...], axis: int | None) -> tuple[Any, ...]:
    return tuple(value for index, value in enumerate(values) if index != axis)
