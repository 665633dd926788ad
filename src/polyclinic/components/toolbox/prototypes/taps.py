"""The feature map of a tap, out of a forward pass that has happened."""

from __future__ import annotations

from torch import Tensor

from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.networks.base import Features, SegmentationNetwork


def feature_width(network: SegmentationNetwork, tap: str, component: str) -> int:
    """Channels of a tap's map; a sentence if the network has no such tap or its map is not kept."""
    known = [name for name in network.widths if name != "input"]
    if tap not in known:
        hint = suggestion(tap, known) or "."
        raise PolyclinicError(
            f"{component}(feature={tap}): no such map in this network{hint} Maps: {', '.join(known)}."
        )
    return network.widths[tap]


def feature_map(step: Step, tap: str) -> Tensor:
    """The map of a tap for the labelled images, ``(batch, channel, *spatial)``."""
    return map_of(step.labelled, tap)


def map_of(features: Features, tap: str) -> Tensor:
    """The map of a tap: ``encoder0`` is the finest of the encoder, ``decoder0`` of the decoder."""
    if tap == "bottleneck":
        return features.encoder[-1]
    side, level = tap[:7], int(tap[7:])
    return features.encoder[level] if side == "encoder" else features.decoder[-1 - level]
