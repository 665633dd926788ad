"""A convolutional decoder over an encoder that is no U-Net, after UNETR (Hatamizadeh et al., WACV 2022).

PathFL section 4.3.8 has an "upsampling convolutional decoder" behind a ViT, CONCH and CHIEF and says no more. Here,
each map of the encoder goes through a neck (1x1 convolution to the U-Net's width of that level; a map that is too
coarse is doubled until it fits) and the decoder is the U-Net's. Level 0 is two convolutions on the image itself, as in
UNETR: without them nothing finer than a patch would reach the decoder.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.networks.base import SegmentationNetwork
from polyclinic.networks.blocks import (
    BlockStyle,
    Convolution,
    TwoConvolutions,
    UpSample,
    Upsampling,
    change_last_activation,
    linear_mode,
)
from polyclinic.networks.classifiers import add_auxiliary_heads, classifier_layer
from polyclinic.recipe.network import ConvolutionSettings


@dataclass(frozen=True)
class Level:
    """A map of the encoder: its channels, how often its neck doubles it, and image size over map size after that."""

    channels: int
    stride: float
    doublings: int = 0


class PyramidNetwork(SegmentationNetwork):
    """Level 0 from the image, the deeper ones from ``maps``, then the decoder; level ``k`` is ``width * 2**k`` wide.

    Images are padded at their far edges to a multiple before ``maps`` sees them, so any size can go in.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        dims: int,
        settings: ConvolutionSettings,
        levels: Sequence[Level],
        multiple: int,
    ) -> None:
        depth = len(levels)
        sizes = [settings.width * 2**level for level in range(depth + 1)]
        widths = {"input": channels} | {f"encoder{level}": sizes[level] for level in range(depth)}
        widths |= {"bottleneck": sizes[depth]} | {f"decoder{level}": sizes[level] for level in reversed(range(depth))}
        super().__init__(channels, classes, dims, widths, multiple)
        self.depth = depth
        style = BlockStyle.of(dims, settings)
        self.stem = TwoConvolutions(style, channels, sizes[0])
        self.necks = nn.ModuleList(
            _neck(style, level.channels, sizes[number], level.doublings, settings.upsample)
            for number, level in enumerate(levels, 1)
        )
        strides = [1.0, *(level.stride for level in levels)]
        self.decoder = nn.ModuleList(
            _Up(style, sizes[level + 1], sizes[level], _scale(strides[level : level + 2]), settings.upsample)
            for level in reversed(range(depth))
        )
        change_last_activation(self.decoder[-1], settings.last_activation)
        self.classifier = classifier_layer(dims, sizes[0], classes, settings.prior_bias)
        if settings.deep_supervision:
            add_auxiliary_heads(self, settings.prior_bias)

    @abstractmethod
    def maps(self, images: Tensor) -> list[Tensor]:
        """Maps of level 1 to the deepest, before their necks, for images whose sizes are multiples."""

    @abstractmethod
    def encoder_stage(self, parts: list[str]) -> str:
        """The stage of a weight of the encoder, given the parts of its name."""

    def encoder_stages(self) -> list[str]:
        """Stages of the encoder that are no level of the pyramid, in forward order."""
        return []

    def encode(self, images: Tensor) -> list[Tensor]:
        """Features of ``encoder0`` ... and the bottleneck."""
        images = self.taps["input"](images)
        missing = [-size % step for size, step in zip(images.shape[2:], self.multiples, strict=True)]
        widths = [width for lack in reversed(missing) for width in (0, lack)]
        padded = F.pad(images, widths, mode="replicate") if any(missing) else images
        pyramid = [self.taps["encoder0"](self.stem(images))]
        for level, (found, neck) in enumerate(zip(self.maps(padded), self.necks, strict=True), 1):
            pyramid.append(self.taps[self.level_name(level)](neck(found)))
        return pyramid

    def decode(self, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Features of the decoder from the coarsest level to ``decoder0``."""
        current, maps = pyramid[-1], []
        for level, stage in zip(reversed(range(self.depth)), self.decoder, strict=True):
            skip = pyramid[level]
            # Only the finest skip was not padded.
            shape = tuple(skip.shape[2:])
            size = shape if level else tuple(n + -n % m for n, m in zip(shape, self.multiples, strict=True))
            current = self.taps[f"decoder{level}"](stage(current, skip, size))
            maps.append(current)
        return maps

    def head(self, decoder: Tensor) -> Tensor:
        """A 1x1 convolution to one logit a class."""
        logits: Tensor = self.classifier(decoder)
        return logits

    def level_name(self, level: int) -> str:
        """``encoder...``, or ``bottleneck`` for the deepest."""
        return "bottleneck" if level == self.depth else f"encoder{level}"

    def stages(self) -> dict[str, list[str]]:
        """``encoder0``, the encoder's own, the other levels, ``head``; a tap belongs to the stage it follows."""
        levels = [name for name in self.widths if name not in ("input", "encoder0")]
        stages: dict[str, list[str]] = {n: [] for n in ("encoder0", *self.encoder_stages(), *levels, "head")}
        for name in self.state_dict():
            stages[self._stage_of(name.split("."))].append(name)
        return stages

    def _stage_of(self, parts: list[str]) -> str:
        kind = parts[0]
        if kind == "taps":
            return "encoder0" if parts[1] == "input" else parts[1]
        if kind == "stem":
            return "encoder0"
        if kind == "necks":
            return self.level_name(int(parts[1]) + 1)
        if kind == "decoder":
            return f"decoder{self.depth - 1 - int(parts[1])}"
        return "head" if kind in ("classifier", "extras") else self.encoder_stage(parts)


class _Up(nn.Module):
    """Raise a coarse map, put it beside the skip, and convolve twice."""

    def __init__(self, style: BlockStyle, coarse: int, width: int, scale: int, upsample: Upsampling) -> None:
        super().__init__()
        raised = width if upsample == "deconv" else coarse
        self.upsample = UpSample(style.dims, coarse, raised, scale, upsample)
        self.convs = TwoConvolutions(style, width + raised, width)

    def forward(self, coarse: Tensor, skip: Tensor, size: tuple[int, ...]) -> Tensor:
        """``coarse`` covers an image of which ``skip``, ``size`` without its padding, is the near corner."""
        raised = self.upsample(coarse)
        if tuple(raised.shape[2:]) != size:  # strides that are no powers of two, such as 14
            raised = F.interpolate(raised, size, mode=linear_mode(len(size)), align_corners=False)
        inside = tuple(slice(n) for n in skip.shape[2:])
        merged: Tensor = self.convs(torch.cat([skip, raised[(..., *inside)]], 1))
        return merged


def _scale(strides: Sequence[float]) -> int:
    """How many times larger the finer of two maps is than the coarser."""
    fine, coarse = strides
    return max(1, round(coarse / fine))


def _neck(style: BlockStyle, channels: int, width: int, doublings: int, upsample: Upsampling) -> nn.Module:
    layers: list[nn.Module] = [Convolution(style, channels, width, kernel=1)]
    for _ in range(doublings):
        layers += [UpSample(style.dims, width, width, 2, upsample), Convolution(style, width, width)]
    return nn.Sequential(*layers)
