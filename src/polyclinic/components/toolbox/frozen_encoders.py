"""Encoders that are run and not trained: the received one, and earlier ones that borrow its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyclinic.components.rounds import SiteRound
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

Reading = Callable[[SegmentationNetwork, Tensor], Tensor]


class FrozenEncoder(nn.Module):
    """The received model of a round from images to what ``read`` makes of the bottleneck, in eval mode.

    Other weights can take the place of its own for a call: one copy of the network serves any number of models, no
    weight is loaded, and the copy's decoder is never run.
    """

    def __init__(self, site: SiteRound, read: Reading = lambda _, bottleneck: bottleneck) -> None:
        super().__init__()
        self.network, self.read = site.frozen(), read

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(batch, channel, *spatial)`` to what was read of ``(batch, width, *spatial)``."""
        return self.read(self.network, self.network.encode(images)[-1])

    @torch.no_grad()
    def run(self, images: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The same without gradients, and with these weights, by their names in the network."""
        named = {f"network.{name}": tensor for name, tensor in (weights or {}).items()}
        return cast(Tensor, functional_call(self, named, (images,)))


def encoder_weights(network: SegmentationNetwork, extra: str = "") -> Tensors:
    """A copy of all that the bottleneck depends on, and of the ``extra`` of this name, but of what never changes."""
    stages = network.stages().items()
    names = [n for stage, names in stages if stage != "head" and not stage.startswith("decoder") for n in names]
    weights, frozen = network.state_dict(), network.frozen()
    names += [name for name in weights if extra and name.startswith(f"extras.{extra}.")]
    return {name: weights[name].detach().clone() for name in names if name not in frozen}
