from __future__ import annotations

from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.networks import NETWORKS, SegmentationNetwork, build_network, network
from polyclinic.recipe import NetworkSettings, UNetSettings
from polyclinic.recipe.network import NETWORK_SETTINGS, UncheckedSettings

RGB = Task(("background", "nucleus"), 3, 2)


def test_weights_depend_on_the_seed_alone_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = build_network(RGB, NetworkSettings(width=2, depth=1), 3).state_dict()
    assert torch.equal(torch.rand(1), expected)
    torch.manual_seed(2)
    second = build_network(RGB, NetworkSettings(width=2, depth=1), 3).state_dict()
    other = build_network(RGB, NetworkSettings(width=2, depth=1), 4).state_dict()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not all(torch.equal(first[n], other[n]) for n in first)


def test_an_unknown_network_is_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"network\.name = 'unett' is not a network, did you mean 'unet'"):
        build_network(RGB, NetworkSettings(name="unett"), 0)


def test_a_network_that_no_memory_can_hold_is_a_sentence() -> None:
    with pytest.raises(
        PolyclinicError, match=r"network\.width = 10000000000, network\.depth = 4, .*: too large for the"
    ):
        build_network(RGB, UNetSettings(width=10**10), 0)


def test_a_network_is_built_with_its_own_settings() -> None:
    class OddSettings(NetworkSettings):
        bend: int = 3

    seen: list[object] = []

    def build(channels: int, classes: int, spatial_dims: int, settings: OddSettings) -> SegmentationNetwork:
        seen.extend([channels, classes, spatial_dims, settings])
        return build_network(RGB, NetworkSettings(width=2, depth=1), 0)

    early = NetworkSettings(name="odd", bend=4)
    network("odd", OddSettings)(build)
    try:
        build_network(RGB, early, 0)
        assert seen == [3, 2, 2, OddSettings(name="odd", bend=4)]
        with pytest.raises(PolyclinicError, match=r"unknown key 'network\.bent', did you mean 'bend'"):
            build_network(RGB, UncheckedSettings(name="odd", bent=4), 0)
    finally:
        del NETWORKS["odd"], NETWORK_SETTINGS["odd"]


@pytest.mark.parametrize("settings", [{"depth": 1}, {"depth": 3}, {"name": "vit", "patch": 4, "layers": 1}])
def test_what_the_settings_say_of_the_size_is_what_the_network_does(settings: dict[str, Any]) -> None:
    built = build_network(RGB, NetworkSettings(width=2, **settings), 0)
    size = 2 * built.multiples[0]
    assert set(built.multiples) == {NetworkSettings(**settings).multiple}
    assert built.encode(torch.rand(1, 3, size, size))[-1].shape[2:] == (2, 2)
