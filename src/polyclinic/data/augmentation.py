"""Batched augmentation on the device of the images, with parameters of its own for every sample.

Geometry moves images and labels alike; intensity changes images only, and clips them where ``clip`` says so. All random
numbers come from a CPU generator, so that a GPU sees the same augmentation as a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.data.deformation import Deformation, coins, draw_deformation, uniform
from polyclinic.recipe import AugmentationSettings, IntensitySettings

Labels = TypeVar("Labels", bound=Tensor | None)
Operation = Callable[[Tensor, torch.Generator], Tensor]


class Intensity:
    """Changes of intensity, such as those of the strong view of unlabelled images."""

    def __init__(self, changes: IntensitySettings) -> None:
        self.changes = changes

    @torch.no_grad()
    def intensity(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change the intensities of ``(batch, channel, *spatial)``: contrast, brightness, gamma, blur, then noise."""
        settings = self.changes
        affine = ((settings.contrast, self._contrast), (settings.brightness, self._brightness))
        bent = ((settings.gamma, self._gamma), (settings.blur, self._blur), (settings.noise, self._noise))
        result = self._applied(affine, images, generator)
        if settings.clip and result is not images:
            axes = _spatial(images)
            result = result.clamp_(images.amin(axes, keepdim=True), images.amax(axes, keepdim=True))
        return self._applied(bent, result, generator).to(images.dtype)

    @staticmethod
    def _applied(operations: Sequence[tuple[float, Operation]], images: Tensor, generator: torch.Generator) -> Tensor:
        """Each operation on the images that its coin chooses, in a copy in float32 or better; or all as they are."""
        result = images
        for probability, operation in operations:
            if not probability:
                continue
            rows = coins(probability, (len(images),), generator).nonzero()[:, 0].to(images.device)
            if len(rows):
                if result is images:
                    result = images.to(torch.promote_types(images.dtype, torch.float32), copy=True)
                result[rows] = operation(result[rows], generator)
        return result

    def _contrast(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return change_contrast(images, uniform(*self.changes.contrast_range, (len(images),), generator))

    def _brightness(self, images: Tensor, generator: torch.Generator) -> Tensor:
        shifts = torch.randn(len(images), generator=generator) * self.changes.brightness_strength
        return images + _column(shifts, images) * _deviation(images)

    def _gamma(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return change_gamma(images, uniform(*self.changes.gamma_range, (len(images),), generator))

    def _blur(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return blur(images, uniform(*self.changes.blur_sigma, (len(images),), generator), max(self.changes.blur_sigma))

    def _noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(images.shape, generator=generator).to(images)
        return images + noise * (self.changes.noise_strength * _deviation(images))


class Augmentation(Intensity):
    """The augmentation of a recipe.

    >>> augmentation = Augmentation(AugmentationSettings(flip=0.5, affine=0.5, gamma=0.3))
    >>> images, labels = torch.rand(2, 1, 8, 6), torch.zeros(2, 8, 6, dtype=torch.int64)
    >>> images, labels = augmentation(images, labels, torch.Generator().manual_seed(0))
    >>> images.shape, labels.shape
    (torch.Size([2, 1, 8, 6]), torch.Size([2, 8, 6]))
    """

    def __init__(self, settings: AugmentationSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def __call__(self, images: Tensor, labels: Labels, generator: torch.Generator) -> tuple[Tensor, Labels]:
        """Apply geometry, then intensity, to ``(batch, channel, *spatial)`` and ``(batch, *spatial)`` or ``None``."""
        images, labels = self.geometry(images, labels, generator)
        return self.intensity(images, generator), labels

    def draw(self, shape: Sequence[int], generator: torch.Generator, device: torch.device | str = "cpu") -> Deformation:
        """Draw a deformation for images of ``shape`` ``(batch, channel, *spatial)``, to apply to several tensors."""
        return draw_deformation(self.settings, shape, generator, device)

    @torch.no_grad()
    def geometry(self, images: Tensor, labels: Labels, generator: torch.Generator) -> tuple[Tensor, Labels]:
        """Move images ``(batch, channel, *spatial)`` linearly and labels ``(batch, *spatial)`` by nearest neighbour."""
        deformation = self.draw(images.shape, generator, images.device)
        moved = None if labels is None else deformation.apply(labels, "nearest")
        return deformation.apply(images), cast(Labels, moved)


def change_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Stretch ``(batch, channel, *spatial)`` about the mean of each image and channel by ``factors`` ``(batch,)``."""
    mean = images.mean(dim=_spatial(images), keepdim=True)
    return torch.lerp(mean, images, _column(factors, images))


def change_gamma(images: Tensor, exponents: Tensor) -> Tensor:
    """Raise each image and channel, scaled to 0-1 by its own range, to its exponent ``(batch,)`` and scale back.

    Scaling first keeps negative intensities (z-scores) real; an image of one value stays as it is.
    """
    low, high = images.amin(_spatial(images), keepdim=True), images.amax(_spatial(images), keepdim=True)
    spread = high - low
    scaled = (images - low) / spread.clamp_min(torch.finfo(images.dtype).tiny)
    return scaled.pow(_column(exponents, images)) * spread + low


def blur(images: Tensor, sigmas: Tensor, largest: float) -> Tensor:
    """Blur each sample of ``(batch, channel, *spatial)`` with a Gaussian of its ``sigmas`` ``(batch,)``, in pixels.

    Edges are repeated. ``largest`` bounds the sigmas; it sets one kernel size for all samples, so that the result of
    one does not depend on the others.
    """
    dims, maps = images.ndim - 2, images.shape[0] * images.shape[1]
    radius = int(4 * largest + 0.5)  # SciPy's truncation
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernels = torch.exp(-0.5 * (offsets / sigmas.to(images).unsqueeze(1)) ** 2)
    kernels = (kernels / kernels.sum(1, keepdim=True)).repeat_interleave(images.shape[1], dim=0)
    convolution = F.conv2d if dims == 2 else F.conv3d
    result = images.reshape(1, maps, *images.shape[2:])
    with torch.autocast(images.device.type, enabled=False):
        for axis in range(dims):
            padding = [0] * (2 * dims)
            padding[2 * (dims - 1 - axis)] = padding[2 * (dims - 1 - axis) + 1] = radius
            weight = kernels.view(maps, 1, *[-1 if other == axis else 1 for other in range(dims)])
            result = convolution(F.pad(result, padding, mode="replicate"), weight, groups=maps)
    return result.reshape(images.shape)


def _spatial(images: Tensor) -> tuple[int, ...]:
    return tuple(range(2, images.ndim))


def _column(values: Tensor, images: Tensor) -> Tensor:
    """View ``(batch,)`` so that it broadcasts over ``(batch, channel, *spatial)``."""
    return values.to(images).view(-1, *[1] * (images.ndim - 1))


def _deviation(images: Tensor) -> Tensor:
    """The standard deviation of each image and channel; in two passes, which take a twentieth of ``std``'s one."""
    centred = images - images.mean(dim=_spatial(images), keepdim=True)
    return centred.square_().mean(dim=_spatial(images), keepdim=True).sqrt_()
