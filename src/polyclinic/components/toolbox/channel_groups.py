"""The channels of a convolutional U-Net that can change places without changing what the network computes.

The output channels of a convolution are a *group*: in any order they give the same network, if the layers that read
them (the next convolution, across a skip connection that of the decoder, the upsampling) read them in that order, and
their norm is in it too. A group norm ties its channels: they may change places inside a block, and blocks as wholes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm)  # the first is the base of instance norms, too
_STATISTICS, _COUNT = ("running_mean", "running_var"), "num_batches_tracked"


@dataclass(frozen=True)
class Axis:
    """Where a group's channels lie in a tensor: ``size`` places of an axis from ``start`` on."""

    tensor: str
    axis: int
    start: int = 0


@dataclass
class ChannelGroup:
    """The output channels of one convolution: ``learned`` tells them apart, ``moved`` moves with them."""

    name: str
    size: int
    blocks: int
    """Of the group norm; as many as channels where nothing ties them."""
    learned: list[Axis] = field(default_factory=list)
    """Filters, biases and the norm's weights, along the axis of the output."""
    moved: list[Axis] = field(default_factory=list)
    """Running statistics, and what reads the channels."""

    def features(self, weights: Mapping[str, Tensor]) -> Tensor:
        """All that was learned for each channel, ``(channel, value)`` in double precision."""
        rows = [weights[place.tensor].movedim(place.axis, 0).reshape(self.size, -1) for place in self.learned]
        return torch.cat(rows, 1).double()

    def reorder(self, weights: Tensors, order: Tensor) -> None:
        """Put channel ``order[i]`` at place ``i``; tensors are replaced, never changed. Statistics may stay away."""
        for place in (place for place in (*self.learned, *self.moved) if place.tensor in weights):
            tensor = weights[place.tensor]
            index = torch.arange(tensor.shape[place.axis])
            index[place.start : place.start + self.size] = order + place.start
            weights[place.tensor] = tensor.index_select(place.axis, index)


def channel_groups(network: SegmentationNetwork) -> list[ChannelGroup]:
    """The groups of a U-Net in the order of its forward pass; a sentence for anything that is not understood."""
    from polyclinic.networks.classifiers import HEADS, auxiliary_heads
    from polyclinic.networks.unet import UNet

    if not isinstance(network, UNet):
        raise PolyclinicError(
            "fedma matches the channels of the U-Net alone; take network.name = 'unet' or another aggregation."
        )
    walk, skips, inputs = _Walk(network), list[Inputs](), Inputs((network.channels,))
    for level in range(len(network.encoder)):
        inputs = walk.through(f"encoder.{level}", inputs)
        skips.append(inputs)
    for number, skip in enumerate(reversed(skips[:-1])):
        inputs, tap = walk.through(f"decoder.{number}", inputs, skip), f"decoder{network.depth - 1 - number}"
        if tap in auxiliary_heads(network):
            walk.classify(f"{HEADS}.{tap}", inputs)
    walk.classify("classifier", inputs)
    walk.require_all()
    return walk.groups


Inputs = tuple["ChannelGroup | int", ...]
"""What enters a layer, one after another: groups, or a number of channels in an order that is given."""


class _Walk:
    """Goes through the layers of a network by their types and collects the groups."""

    def __init__(self, network: SegmentationNetwork) -> None:
        self.network, self.groups = network, list[ChannelGroup]()
        self.understood: set[str] = set()

    def through(self, prefix: str, inputs: Inputs, skip: Inputs = ()) -> Inputs:
        """All layers below a name, in order; the skip connection enters the first convolution, before the others."""
        for name, module in self.network.get_submodule(prefix).named_modules(prefix=prefix):
            if isinstance(module, _TRANSPOSED):
                inputs = self._convolve(name, module, inputs, output_axis=1)
            elif isinstance(module, _CONVOLUTIONS):
                inputs, skip = self._convolve(name, module, (*skip, *inputs), output_axis=0), ()
            elif isinstance(module, _NORMS):
                self._normalise(name, module, inputs)
        return inputs

    def classify(self, prefix: str, inputs: Inputs) -> None:
        """A head, whose outputs are the classes."""
        self.through(prefix, inputs)
        del self.groups[-1]

    def _convolve(self, name: str, module: Any, inputs: Inputs, output_axis: int) -> Inputs:
        start, weight = 0, f"{name}.weight"
        for entering in inputs:
            if isinstance(entering, ChannelGroup):
                entering.moved.append(Axis(weight, 1 - output_axis, start))
            start += entering if isinstance(entering, int) else entering.size
        if module.groups != 1 or module.in_channels != start:
            raise PolyclinicError(f"fedma: '{name}' does not read the channels before it; take another aggregation.")
        group = ChannelGroup(name, module.out_channels, module.out_channels, [Axis(weight, output_axis)])
        if module.bias is not None:
            group.learned.append(Axis(f"{name}.bias", 0))
        self.groups.append(group)
        self.understood |= {weight, f"{name}.bias"}
        return (group,)

    def _normalise(self, name: str, module: nn.Module, inputs: Inputs) -> None:
        (group,) = (entering for entering in inputs if isinstance(entering, ChannelGroup))
        if isinstance(module, nn.GroupNorm):
            group.blocks = module.num_groups
        for key in module.state_dict():
            if key != _COUNT:
                (group.moved if key in _STATISTICS else group.learned).append(Axis(f"{name}.{key}", 0))
            self.understood.add(f"{name}.{key}")

    def require_all(self) -> None:
        """Refuse a network with weights that nobody went through: modules of components."""
        unknown = sorted(self.network.state_dict().keys() - self.understood)
        if unknown:
            raise PolyclinicError(
                f"fedma: the order of channels in '{unknown[0]}' is unknown, and matching would break it; fedma goes "
                "with components that put no weights into the network."
            )
