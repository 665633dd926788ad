"""That reordering leaves the function as it is, for all norms, is in ``aggregation/test_fedma.py``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyclinic.components.toolbox.channel_groups import Axis, ChannelGroup, channel_groups
from polyclinic.core.errors import PolyclinicError
from polyclinic.networks import build_network
from polyclinic.recipe import NetworkSettings
from support import tiny_task


def unet(**chosen: object) -> nn.Module:
    return build_network(tiny_task(), NetworkSettings(width=2, depth=1, **chosen), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("upsample", "sizes"), [("deconv", [2, 2, 4, 4, 2, 2, 2]), ("linear", [2, 2, 4, 4, 2, 2])])
def test_the_groups_of_a_small_u_net(upsample: str, sizes: list[int]) -> None:
    groups = channel_groups(unet(upsample=upsample))  # type: ignore[arg-type]
    assert [group.size for group in groups] == sizes
    readers = [[place for place in group.moved if place.tensor.endswith("weight")] for group in groups]
    skip, bottleneck, last = readers[1], readers[3], readers[-1]
    # The encoder's output is read by the level below, and at the first places by the decoder.
    assert [(place.axis, place.start) for place in skip] == [(1, 0), (1, 0)]
    assert skip[1].tensor.startswith("decoder.0")
    assert [(place.axis, place.start) for place in bottleneck] == [(0, 0) if upsample == "deconv" else (1, 2)]
    assert last == [Axis("classifier.weight", 1)]
    if upsample == "deconv":
        raised = readers[4]
        assert [(place.axis, place.start) for place in raised] == [(1, 2)]
        assert groups[4].learned[0].axis == 1


def test_every_weight_is_learned_moved_or_of_the_head() -> None:
    network = unet(norm="batch")
    groups = channel_groups(network)  # type: ignore[arg-type]
    known = {place.tensor for group in groups for place in (*group.learned, *group.moved)}
    counts = {name for name in network.state_dict() if name.endswith("num_batches_tracked")}
    assert network.state_dict().keys() - known == counts | {"classifier.bias"}


def test_reordering_replaces_tensors_and_moves_one_part_of_an_axis() -> None:
    group = ChannelGroup("g", 2, 2, [Axis("w", 0)], [Axis("r", 1, 1), Axis("missing", 0)])
    weights = {"w": torch.arange(2.0), "r": torch.arange(8.0).reshape(2, 4)}
    before = dict(weights)
    group.reorder(weights, torch.tensor([1, 0]))
    assert weights["w"].tolist() == [1, 0]
    assert weights["r"].tolist() == [[0, 2, 1, 3], [4, 6, 5, 7]]
    assert before["w"].tolist() == [0, 1]


def test_layers_that_do_not_fit_are_refused() -> None:
    network = unet()
    network.classifier = nn.Conv2d(3, 3, 1)
    with pytest.raises(PolyclinicError, match="'classifier' does not read the channels before it"):
        channel_groups(network)  # type: ignore[arg-type]
