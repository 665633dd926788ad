"""U-Net in 2D and 3D (Ronneberger et al. 2015; Cicek et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.networks.blocks import BlockStyle, Down, Size, TwoConvolutions, Up, change_last_activation
from polyclinic.networks.classifiers import add_auxiliary_heads, classifier_layer
from polyclinic.networks.registry import network
from polyclinic.recipe import UNetSettings


@network("unet", UNetSettings)
class UNet(SegmentationNetwork):
    """``depth`` poolings; ``width`` channels at full resolution, doubled at every level.

    With ``upsample="deconv"`` a stride-2 transposed convolution halves the channels; with ``"linear"`` the coarse map
    is interpolated and concatenated as it is. Sizes need not divide by ``2 ** depth``: the decoder pads to its skip.
    ``poolings`` and ``kernels`` give the strides and kernels along each axis, level by level; without them they are 2
    and 3.
    """

    def __init__(self, channels: int, classes: int, spatial_dims: int, settings: UNetSettings) -> None:
        depth, width = settings.depth, settings.width
        encoder = [width * 2**level for level in range(depth + 1)]
        widths = {"input": channels} | {f"encoder{level}": encoder[level] for level in range(depth)}
        widths |= {"bottleneck": encoder[depth]} | {
            f"decoder{level}": encoder[level] for level in reversed(range(depth))
        }
        strides, kernels = _axis_sizes(settings, spatial_dims)
        super().__init__(channels, classes, spatial_dims, widths, settings.multiple)
        self.depth = depth

        style = BlockStyle.of(spatial_dims, settings)
        self.encoder = nn.ModuleList([TwoConvolutions(style, channels, encoder[0], kernels[0])])
        self.encoder.extend(
            Down(style, encoder[level], encoder[level + 1], kernels[level + 1], strides[level])
            for level in range(depth)
        )
        self.decoder = nn.ModuleList(
            Up(
                style,
                encoder[level + 1],
                encoder[level],
                encoder[level],
                settings.upsample,
                kernels[level],
                strides[level],
            )
            for level in reversed(range(depth))
        )
        change_last_activation(self.decoder[-1], settings.last_activation)
        self.classifier = classifier_layer(spatial_dims, width, classes, settings.prior_bias)
        if settings.deep_supervision:
            add_auxiliary_heads(self, settings.prior_bias)

    def encode(self, images: Tensor) -> list[Tensor]:
        """Features of ``encoder0`` ... and the bottleneck."""
        pyramid: list[Tensor] = []
        current = self.taps["input"](images)
        for level, stage in enumerate(self.encoder):
            current = self.taps["bottleneck" if level == self.depth else f"encoder{level}"](stage(current))
            pyramid.append(current)
        return pyramid

    def decode(self, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Features of the decoder from the coarsest level to ``decoder0``."""
        current, maps = pyramid[-1], []
        for level, stage in zip(reversed(range(self.depth)), self.decoder, strict=True):
            current = self.taps[f"decoder{level}"](stage(current, pyramid[level]))
            maps.append(current)
        return maps

    def head(self, decoder: Tensor) -> Tensor:
        """A 1x1 convolution to one logit a class."""
        logits: Tensor = self.classifier(decoder)
        return logits

    def stages(self) -> dict[str, list[str]]:
        """``encoder0`` ..., ``bottleneck``, ``decoder...``, ``head``; a tap belongs to the stage it follows."""
        order = [name for name in self.widths if name != "input"] + ["head"]
        stages: dict[str, list[str]] = {name: [] for name in order}
        for name in self.state_dict():
            stages[self._stage_of(name.split("."))].append(name)
        return stages

    def _stage_of(self, parts: list[str]) -> str:
        if parts[0] == "taps":
            return "encoder0" if parts[1] == "input" else parts[1]
        if parts[0] == "encoder":
            return "bottleneck" if int(parts[1]) == self.depth else f"encoder{parts[1]}"
        if parts[0] == "decoder":
            return f"decoder{self.depth - 1 - int(parts[1])}"
        return "head"


def _axis_sizes(settings: UNetSettings, dims: int) -> tuple[Sequence[Size], Sequence[Size]]:
    """The strides of the poolings and the kernels of the levels: one number for all axes, or one for each."""
    for name, sizes in (("poolings", settings.poolings), ("kernels", settings.kernels)):
        if sizes is not None and len(sizes[0]) != dims:
            raise PolyclinicError(
                f"network.{name} has {len(sizes[0])} numbers in an entry, and the task is {dims}D; give one for each "
                "axis."
            )
    return settings.poolings or (2,) * settings.depth, settings.kernels or (3,) * (settings.depth + 1)
