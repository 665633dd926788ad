"""AugSeg's pool of intensity operations, for whole batches, any number of channels, 2D and 3D.

Paper: Zhao et al., *Augmentation Matters: A Simple-yet-Effective Approach to Semi-supervised Semantic Segmentation*,
CVPR 2023. Every image gets a random number of operations, drawn with replacement, each of random strength ``s`` in
[0, 1). On a scale from black = 0 to white = 1, with ``v = 0.05 + 0.9 s``:

identity; autocontrast: each channel to the full range; equalise: each channel by its histogram of 256 bins; blur:
Gaussian of ``0.1 + 1.9 s`` pixels; contrast: ``mean + v (x - mean)``; brightness: ``v x``; sharpness: ``smooth + v (x -
smooth)`` with a 3x3 kernel of ones around a 5; posterise: 1 to 4 of 8 bits are dropped; solarise: what is at or above a
threshold is inverted. In colour also: saturation, ``grey + v (x - grey)``, and hue, turned by ``s - 0.5``.

Departures from the released code, which knows bytes alone: intensities are not rounded to bytes, except where the
operation is about bytes; edges are repeated for the smooth image. Without a common scale (z-scores) an image's own
smallest and largest value of each channel are black and white; autocontrast then only undoes what came before it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.data.augmentation import blur, change_contrast

Operation = Callable[[Tensor, Tensor], Tensor]
_TINY = torch.finfo(torch.float32).tiny
_BINS = 256


@torch.no_grad()
def perturb(
    images: Tensor, generator: torch.Generator, most: int = 3, colour: bool = False, unit: bool = True
) -> Tensor:
    """Images ``(batch, channel, *spatial)`` after 1 to ``most`` operations each; shape, type and scale stay.

    ``colour``: the three channels are red, green and blue. ``unit``: black is 0 and white is 1 for all images, and not
    their own extremes. All random numbers come from the CPU ``generator``.
    """
    pool = list((_COLOUR if colour else _POOL).values())
    counts = torch.randint(1, most + 1, (len(images), 1), generator=generator)
    chosen = torch.randint(len(pool), (len(images), most), generator=generator)
    strengths = torch.rand(len(images), most, generator=generator)
    chosen[torch.arange(most) >= counts] = 0  # the identity
    low, spread = _limits(images, colour, unit)
    result = (images.float() - low) / spread
    for numbers, strength in zip(chosen.unbind(1), strengths.unbind(1), strict=True):
        for number, operation in enumerate(pool[1:], 1):
            rows = (numbers == number).nonzero()[:, 0]
            if len(rows):
                here = rows.to(images.device)
                result[here] = operation(result[here], strength[rows].to(images.device))
    return (result * spread + low).to(images.dtype)


def _limits(images: Tensor, colour: bool, unit: bool) -> tuple[Tensor, Tensor]:
    """Black, and white minus black, of each image and channel; channels of a colour image have one scale."""
    if unit or not len(images):
        return images.new_zeros((), dtype=torch.float32), images.new_ones((), dtype=torch.float32)
    low, high = torch.aminmax(images.float().flatten(1 if colour else 2), dim=-1)
    shape = (len(images), -1, *[1] * (images.dim() - 2))
    spread = high - low
    return low.view(shape), torch.where(spread > 0, spread, 1.0).view(shape)


def _column(values: Tensor, images: Tensor) -> Tensor:
    return values.view(-1, *[1] * (images.dim() - 1))


def _factor(strength: Tensor) -> Tensor:
    return 0.05 + 0.9 * strength


def _levels(images: Tensor) -> Tensor:
    """The nearest of the 256 values of a byte, as floats."""
    return (images * (_BINS - 1)).round().clamp(0, _BINS - 1)


def identity(images: Tensor, strength: Tensor) -> Tensor:  # noqa: ARG001
    """Nothing happens."""
    return images


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:  # noqa: ARG001
    """Each channel from 0 to 1; one of a single value stays."""
    low, high = (edge.view(*images.shape[:2], *[1] * (images.dim() - 2)) for edge in _edges(images))
    return torch.where(high > low, (images - low) / (high - low).clamp_min(_TINY), images)


def _edges(images: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.aminmax(images.flatten(2), dim=2)
    return low, high


def equalise(images: Tensor, strength: Tensor) -> Tensor:  # noqa: ARG001
    """Each pixel becomes the share of its channel that is darker, of all but the brightest bin."""
    bins = _levels(images).long().flatten(2)
    # Integers add up to the same sum in any order, so a GPU repeats it.
    counts = torch.zeros(*bins.shape[:2], _BINS, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, bins, torch.ones_like(bins))
    brightest = counts.gather(2, bins.amax(2, keepdim=True))
    rest = bins.shape[2] - brightest
    darker = (counts.cumsum(2) - counts).float() / rest.clamp_min(1).float()
    equal = darker.gather(2, bins).view(images.shape)
    return torch.where(rest.view(*images.shape[:2], *[1] * (images.dim() - 2)) > 0, equal, images)


def soften(images: Tensor, strength: Tensor) -> Tensor:
    """A Gaussian blur."""
    return blur(images, 0.1 + 1.9 * strength, 2.0)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Towards the mean of each channel."""
    return change_contrast(images, _factor(strength))


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards black."""
    return images * _column(_factor(strength), images)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Towards a smooth version."""
    dims = images.dim() - 2
    kernel = images.new_ones(1, 1, *[3] * dims)
    kernel[(0, 0, *[1] * dims)] = 5
    convolution = F.conv2d if dims == 2 else F.conv3d
    maps = F.pad(images.flatten(0, 1).unsqueeze(1), [1] * (2 * dims), mode="replicate")
    with torch.autocast(images.device.type, enabled=False):
        smooth = convolution(maps, kernel / kernel.sum()).view(images.shape)
    return torch.lerp(smooth, images, _column(_factor(strength), images))


def posterise(images: Tensor, strength: Tensor) -> Tensor:
    """Without the lowest bits."""
    step = _column(2 ** (4 * strength).ceil().clamp_min(1), images)
    return (_levels(images) / step).floor() * step / (_BINS - 1)


def solarise(images: Tensor, strength: Tensor) -> Tensor:
    """Inverted at and above a threshold from 1 to 255."""
    threshold = _column(_BINS - (255 * strength).ceil().clamp_min(1), images)
    return torch.where(_levels(images) >= threshold, 1 - images, images)


def grey(images: Tensor) -> Tensor:
    """Luma ``(batch, 1, *spatial)`` of red, green and blue."""
    red, green, blue = (images[:, [channel]] for channel in range(3))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def grey_contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Towards the mean luma, the same for all three channels."""
    mean = grey(images).mean(dim=tuple(range(1, images.dim())), keepdim=True)
    return torch.lerp(mean, images, _column(_factor(strength), images))


def saturation(images: Tensor, strength: Tensor) -> Tensor:
    """Towards grey."""
    return torch.lerp(grey(images), images, _column(_factor(strength), images))


def hue(images: Tensor, strength: Tensor) -> Tensor:
    """Turned around the colour circle by up to half of it, either way; saturation and value stay."""
    red, green, blue = (images[:, [channel]] for channel in range(3))
    value = images.amax(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    safe = chroma.clamp_min(_TINY)
    blueish = torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4)
    sixths = torch.where(value == red, (green - blue) / safe, blueish) + 6 * _column(strength - 0.5, images)
    places = torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, *[1] * (images.dim() - 2))
    distance = (sixths + places).remainder(6)
    return value - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1)


_POOL: dict[str, Operation] = {
    "identity": identity,
    "autocontrast": autocontrast,
    "equalise": equalise,
    "blur": soften,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
    "posterise": posterise,
    "solarise": solarise,
}
_COLOUR: dict[str, Operation] = {**_POOL, "contrast": grey_contrast, "colour": saturation, "hue": hue}
