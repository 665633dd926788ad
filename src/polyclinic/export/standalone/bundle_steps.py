"""The steps of this bundle that MONAI has no transform for: reading, sizes, slices, and the way back to the file.

All others are MONAI's own, in ``configs/inference.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from monai.inferers import Inferer, SlidingWindowInferer
from monai.transforms import MapTransform, Resize

from polyclinic.export.standalone.image_files import ImageFiles, list_images, read_image, write_mask
from polyclinic.export.standalone.preparation import Prepared, reduced, to_file_grid
from polyclinic.export.standalone.site_intensity import standardised


def list_data(folder: str, channels: int, zero_fill: bool) -> list[dict[str, Any]]:
    """The images of a folder as MONAI's datasets take them."""
    return [{"image": files, "name": files.name} for files in list_images(Path(folder), channels, zero_fill)]


class ReadImaged(MapTransform):  # type: ignore[misc]
    """The files of an image as a tensor ``(channel, *spatial)`` with its affine."""

    def __init__(
        self, keys: str, channels: int, axes: int, file_spacing: Sequence[float] | None, known_place: bool
    ) -> None:
        """``axes``: of a file. ``file_spacing``: of files without one. ``known_place``: such files are refused."""
        super().__init__(keys)
        self.channels, self.axes, self.file_spacing, self.known_place = channels, axes, file_spacing, known_place

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Read one entry."""
        result = dict(data)
        for key in self.keys:
            files: ImageFiles = result[key]
            image = read_image(files, self.channels)
            if image.voxels.ndim - 1 != self.axes:
                raise ValueError(f"{files.paths[0]}: expected an image with {self.axes} axes.")
            spacing = self.file_spacing if self.file_spacing and len(self.file_spacing) == self.axes else None
            if image.affine is None and spacing is None and self.known_place:
                raise ValueError(f"{files.paths[0]}: the model needs images that know their place in space.")
            nominal = np.diag([*(spacing or ()), *[1.0] * (4 - len(spacing or ()))])
            affine = torch.from_numpy(nominal if image.affine is None else image.affine)
            result[key] = MetaTensor(torch.from_numpy(image.voxels), affine=affine)
            result["file_affine"], result["file_shape"] = affine.clone(), torch.tensor(image.voxels.shape[1:])
            result["highest"], result["picture"] = torch.tensor(image.highest or 0.0), torch.tensor(image.picture)
            result["absent"] = torch.tensor([number in image.absent for number in range(self.channels)])
        return result


class FullRanged(MapTransform):  # type: ignore[misc]
    """From 0 to the largest number that the file could hold, to 0 to 1; with ``pictures`` those alone, where known."""

    def __init__(self, keys: str, pictures: bool = False) -> None:
        super().__init__(keys)
        self.pictures = pictures

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Scale one entry."""
        if self.pictures and not (data["picture"] and data["highest"]):
            return data
        if not data["highest"]:
            raise ValueError(f"{data['name']}: the model needs unsigned integers such as the bytes of a picture.")
        return {**data, **{key: data[key] / data["highest"] for key in self.keys}}


class SiteIntensityd(MapTransform):  # type: ignore[misc]
    """Scale by the mean and deviation of a site's images: one number each, or one of each channel."""

    def __init__(self, keys: str, mean: Sequence[float], deviation: Sequence[float], nonzero: bool) -> None:
        super().__init__(keys)
        self.mean, self.deviation, self.nonzero = mean, deviation, nonzero

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Scale one entry."""
        result, absent = dict(data), {number for number, lacks in enumerate(data["absent"]) if lacks}
        for key in self.keys:
            voxels = np.asarray(torch.as_tensor(result[key]).cpu())
            scaled = standardised(voxels, self.mean, self.deviation, self.nonzero, absent)
            result[key] = MetaTensor(torch.from_numpy(scaled), affine=result[key].affine)
        return result


class FitToSized(MapTransform):  # type: ignore[misc]
    """Bring to a size, -1 for an axis that stays: means where an axis shrinks, linear where it grows."""

    def __init__(self, keys: str, spatial_size: Sequence[int]) -> None:
        super().__init__(keys)
        self.spatial_size = spatial_size

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Resize one entry."""
        result = dict(data)
        for key in self.keys:
            shape = result[key].shape[1:]
            target = [want if want > 0 else size for want, size in zip(self.spatial_size, shape, strict=True)]
            smaller = [min(pair) for pair in zip(shape, target, strict=True)]
            for size, mode in ((smaller, "area"), (target, "trilinear" if len(shape) == 3 else "bilinear")):
                if list(result[key].shape[1:]) != size:
                    result[key] = Resize(size, mode=mode)(result[key])
        return result


class SegmentationInferer(Inferer):  # type: ignore[misc]
    """Probabilities of images, of windows where they are larger than ``roi_size``, of slices along ``slice_axis``."""

    def __init__(
        self,
        roi_size: Sequence[int] | None,
        overlap: float,
        batch_size: int,
        multiples: Sequence[int],
        slice_axis: int | None = None,
        neighbours: int = 0,
    ) -> None:
        """``multiples``: what sizes are padded to. ``neighbours``: slices on each side that are channels, too."""
        super().__init__()
        self.roi_size, self.overlap, self.batch_size, self.multiples = roi_size, overlap, batch_size, multiples
        self.slice_axis, self.neighbours = slice_axis, neighbours

    def __call__(self, inputs: torch.Tensor, network: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Images ``(batch, channel, *spatial)`` to ``(batch, class, *spatial)``."""
        images = inputs.as_tensor() if isinstance(inputs, MetaTensor) else inputs
        return torch.stack([self._volume(image, network) for image in images])

    def _volume(self, image: torch.Tensor, network: Any) -> torch.Tensor:
        if self.slice_axis is None:
            return self._samples(image[None], network)[0]
        slices = image.movedim(self.slice_axis + 1, 0)
        steps = range(-self.neighbours, self.neighbours + 1)
        beside = [(torch.arange(len(slices)) + step).clamp(0, len(slices) - 1) for step in steps]
        samples = torch.cat([slices[index] for index in beside], 1)
        return self._samples(samples, network).movedim(0, self.slice_axis + 1)

    def _samples(self, samples: torch.Tensor, network: Any) -> torch.Tensor:
        spatial = tuple(samples.shape[2:])
        window = tuple(min(pair) for pair in zip(self.roi_size or spatial, spatial, strict=True))
        batches = torch.split(samples, self.batch_size)
        if window == spatial:
            return torch.cat([self._forward(batch, network) for batch in batches])
        slide = SlidingWindowInferer(window, self.batch_size, self.overlap, mode="gaussian")
        return torch.cat([slide(batch, lambda part: self._forward(part, network)) for batch in batches])

    def _forward(self, batch: torch.Tensor, network: Any) -> torch.Tensor:
        spatial = batch.shape[2:]
        missing = [-size % step for size, step in zip(spatial, self.multiples, strict=True)]
        widths = [width for lack in reversed(missing) for width in (lack // 2, lack - lack // 2)]
        padded = F.pad(batch, widths, mode="replicate") if any(missing) else batch
        inside = tuple(slice(lack // 2, lack // 2 + size) for lack, size in zip(missing, spatial, strict=True))
        logits: torch.Tensor = network(padded)[(slice(None), slice(None), *inside)]
        return logits.float().softmax(1)


class SaveMaskd(MapTransform):  # type: ignore[misc]
    """Bring probabilities back to the grid of their file, take the largest class, and write the mask."""

    def __init__(self, keys: str, files: Sequence[dict[str, Any]], output_dir: str) -> None:
        super().__init__(keys)
        self.files, self.folder = {entry["name"]: entry["image"] for entry in files}, Path(output_dir)

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Write the mask of one entry."""
        for key in self.keys:
            shape = tuple(int(size) for size in data["file_shape"])
            rank = len(shape)
            affine, moved = (np.asarray(data[k], dtype=float) for k in ("file_affine", "image_affine"))
            grid = np.linalg.solve(reduced(affine, rank), reduced(moved, rank))
            found = np.asarray(torch.as_tensor(data[key]).cpu(), dtype=np.float32)
            prepared = Prepared(np.empty(0), shape, found.shape[1:], grid, None)
            mask = to_file_grid(found[None], prepared).argmax(0)
            write_mask(self.folder, mask, self.files[data["name"]])
        return data


class NoteAffined(MapTransform):  # type: ignore[misc]
    """Keep the affine of the prepared image beside it, for the way back."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Note the affine of one entry."""
        return {**data, **{f"{key}_affine": data[key].affine.clone() for key in self.keys}}
