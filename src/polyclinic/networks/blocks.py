"""The blocks of the built-in networks: convolution with norm and activation, pooling, upsampling with a skip, MLP.

Names, order and first values of the weights are those of MONAI's ``TwoConv``, ``Down``, ``UpCat``, ``Convolution``,
``UpSample`` and ``MLPBlock``, of which runs of older versions were made, and so are all outputs. They are written out
here because an import of any part of MONAI imports all of it, which takes longer than a short run.

Sizes of kernels and strides are one number for all axes, or one for each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.recipe.network import ConvolutionSettings

Size = int | tuple[int, ...]
Upsampling = Literal["deconv", "linear"]

CONVOLUTIONS: dict[int, type[nn.Conv2d | nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.ConvTranspose2d | nn.ConvTranspose3d]] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_POOLINGS: dict[int, type[nn.MaxPool2d | nn.MaxPool3d]] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
_INSTANCE_NORMS: dict[int, type[nn.InstanceNorm2d | nn.InstanceNorm3d]] = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
_BATCH_NORMS: dict[int, type[nn.BatchNorm2d | nn.BatchNorm3d]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    # Features below 0 keep a gradient: a run whose foreground features are all off can still find its way back.
    "leaky-relu": lambda: nn.LeakyReLU(0.01, inplace=True),
}
"""Activations by the name that a recipe uses."""


@dataclass(frozen=True)
class BlockStyle:
    """What all convolutions of a network share; ``dims`` is the number of spatial axes."""

    dims: int
    norm: str = "instance"
    bias: bool = True
    dropout: float = 0.0
    activation: str = "relu"

    @classmethod
    def of(cls, dims: int, settings: ConvolutionSettings) -> BlockStyle:
        """What a recipe's network asks for."""
        return cls(dims, settings.norm, settings.bias, settings.dropout, settings.activation)


def norm_layer(name: str, channels: int, dims: int) -> nn.Module:
    """The norm of a recipe's name. Group norm has groups of four channels, as in PathFL's network."""
    if name == "instance":
        return _INSTANCE_NORMS[dims](channels, affine=True)
    if name == "group":
        return nn.GroupNorm(max(1, channels // gcd(channels, 4)), channels)
    tracked = name == "batch"  # "batch-nostats" has neither weights nor statistics
    return _BATCH_NORMS[dims](channels, affine=tracked, track_running_stats=tracked)


class Convolution(nn.Sequential):
    """Convolution that keeps the size (an odd ``kernel``), norm, dropout, activation."""

    def __init__(self, style: BlockStyle, channels: int, width: int, kernel: Size = 3) -> None:
        super().__init__()
        padding = kernel // 2 if isinstance(kernel, int) else tuple(size // 2 for size in kernel)
        # mypy takes the types of a size for one axis count only.
        layer: Callable[..., nn.Module] = CONVOLUTIONS[style.dims]
        self.add_module("conv", layer(channels, width, kernel, padding=padding, bias=style.bias))
        after = nn.Sequential()
        after.add_module("N", norm_layer(style.norm, width, style.dims))
        if style.dropout:
            after.add_module("D", nn.Dropout(style.dropout))
        after.add_module("A", ACTIVATIONS[style.activation]())
        self.add_module("adn", after)


class TwoConvolutions(nn.Sequential):
    """Two convolutions, the first of which changes the number of channels."""

    def __init__(self, style: BlockStyle, channels: int, width: int, kernel: Size = 3) -> None:
        super().__init__()
        self.add_module("conv_0", Convolution(style, channels, width, kernel))
        self.add_module("conv_1", Convolution(style, width, width, kernel))


LAST_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky-relu": lambda: nn.LeakyReLU(0.1, inplace=True),
    # The spatial mean of every logit is then the same for all images where the norm is an instance norm.
    "none": nn.Identity,
}
"""What may stand in the place of the activation before the classifier."""


def change_last_activation(block: nn.Module, name: str) -> None:
    """Let the two convolutions of a decoder's block end with another activation; no weight changes its name by it."""
    if name != "same":
        block.get_submodule("convs.conv_1.adn").A = LAST_ACTIVATIONS[name]()


class Down(nn.Sequential):
    """The largest value of every ``stride`` pixels along an axis, then two convolutions."""

    def __init__(self, style: BlockStyle, channels: int, width: int, kernel: Size = 3, stride: Size = 2) -> None:
        super().__init__()
        pooling: Callable[..., nn.Module] = _POOLINGS[style.dims]
        self.add_module("max_pooling", pooling(stride))
        self.add_module("convs", TwoConvolutions(style, channels, width, kernel))


class UpSample(nn.Sequential):
    """Enlarge a map by ``stride``: with a transposed convolution from ``channels`` to ``width``, or linearly."""

    def __init__(
        self, dims: int, channels: int, width: int, stride: Size, kind: Upsampling, align_corners: bool = False
    ) -> None:
        super().__init__()
        if kind == "deconv":
            layer: Callable[..., nn.Module] = _TRANSPOSED[dims]
            self.add_module("deconv", layer(channels, width, stride, stride))
        else:
            factors = tuple(float(size) for size in _each_axis(stride, dims))
            linear = nn.Upsample(scale_factor=factors, mode=linear_mode(dims), align_corners=align_corners)
            self.add_module("upsample_non_trainable", linear)


class Up(nn.Module):
    """Raise a coarse map, put it beside the skip, and convolve twice.

    A transposed convolution raises ``coarse`` channels to as many as the skip has; linear interpolation keeps them.
    """

    def __init__(
        self,
        style: BlockStyle,
        coarse: int,
        skip: int,
        width: int,
        upsample: Upsampling = "deconv",
        kernel: Size = 3,
        stride: Size = 2,
        align_corners: bool = True,
    ) -> None:
        super().__init__()
        raised = skip if upsample == "deconv" else coarse
        self.upsample = UpSample(style.dims, coarse, raised, stride, upsample, align_corners)
        self.convs = TwoConvolutions(style, skip + raised, width, kernel)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        """Maps ``(batch, channel, *spatial)``; the result has the size of ``skip``."""
        raised: Tensor = self.upsample(coarse)
        # Poolings leave out the rest of a size that they do not divide: the far edge is repeated there.
        missing = [wanted - size for wanted, size in zip(skip.shape[2:], raised.shape[2:], strict=True)]
        if any(missing):
            raised = F.pad(raised, [width for lack in reversed(missing) for width in (0, lack)], mode="replicate")
        merged: Tensor = self.convs(torch.cat([skip, raised], dim=1))
        return merged


class MLP(nn.Module):
    """Two linear layers with GELU between, on tokens ``(batch, token, size)``."""

    def __init__(self, size: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.linear1 = nn.Linear(size, hidden)
        self.linear2 = nn.Linear(hidden, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """The same shape."""
        hidden = self.dropout(F.gelu(self.linear1(tokens)))
        result: Tensor = self.dropout(self.linear2(hidden))
        return result


def linear_mode(dims: int) -> str:
    """PyTorch's name of linear interpolation along ``dims`` axes."""
    return "bilinear" if dims == 2 else "trilinear"


def _each_axis(size: Size, dims: int) -> Sequence[int]:
    return [size] * dims if isinstance(size, int) else size
