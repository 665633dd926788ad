"""Maps of taps are those that the network's modules gave."""

from __future__ import annotations

import pytest
import torch

from polyclinic.components.toolbox.prototypes.taps import feature_width, map_of
from polyclinic.core.errors import PolyclinicError
from polyclinic.networks import build_network
from polyclinic.recipe import NetworkSettings
from support import tiny_task


def test_every_tap_gives_a_map_of_its_width_and_size() -> None:
    network = build_network(tiny_task(), NetworkSettings(width=2, depth=3), 0)
    features = network.features(torch.rand(1, 2, 16, 16))
    for tap in (name for name in network.widths if name != "input"):
        level = 3 if tap == "bottleneck" else int(tap[7:])
        assert map_of(features, tap).shape == (1, feature_width(network, tap, "x"), 16 // 2**level, 16 // 2**level)
    assert map_of(features, "encoder1") is features.encoder[1]
    assert map_of(features, "decoder0") is features.decoder[-1]
    assert map_of(features, "bottleneck") is features.encoder[-1]


def test_a_tap_that_is_not_there_gets_a_suggestion() -> None:
    network = build_network(tiny_task(), NetworkSettings(width=2, depth=1), 0)
    with pytest.raises(PolyclinicError, match=r"fpl\(feature=botleneck\): no such map.*bottleneck"):
        feature_width(network, "botleneck", "fpl")
