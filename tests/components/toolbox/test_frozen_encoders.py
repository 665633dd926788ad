from __future__ import annotations

import copy

import torch

from polyclinic.components.toolbox.frozen_encoders import FrozenEncoder, encoder_weights
from polyclinic.federation.workspace import build_workspace
from step_support import shake, site_of
from support import assert_same, tiny_recipe, tiny_task


def test_the_received_encoder_and_one_with_other_weights() -> None:
    """Against whole copies of both networks; the one in training has moved on, and no buffer is touched."""
    network = (workspace := build_workspace(tiny_recipe(), tiny_task())).network
    earlier, earlier_weights = copy.deepcopy(network).eval(), encoder_weights(network)
    shake(network, 1)
    site, received = site_of(workspace), copy.deepcopy(network).eval()
    encoder = FrozenEncoder(site)
    shake(network, 2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = torch.rand(2, 2, 8, 8)
    ours = encoder.run(images), encoder.run(images, earlier_weights), encoder.run(images)
    assert not any(maps.requires_grad for maps in ours)
    torch.testing.assert_close(ours[0], received.encode(images)[-1])
    torch.testing.assert_close(ours[1], earlier.encode(images)[-1])
    assert torch.equal(ours[0], ours[2])
    assert not torch.allclose(ours[0], ours[1])
    assert_same(before, network.state_dict())


def test_what_is_read_of_the_bottleneck_also_has_the_other_weights() -> None:
    workspace = build_workspace(tiny_recipe("moon(projection=3)"), tiny_task())
    encoder = FrozenEncoder(
        site_of(workspace), lambda network, maps: network.extras["model_contrast"](maps.mean((2, 3)))
    )
    weights = encoder_weights(workspace.network, "model_contrast")
    assert any(name.startswith("extras.model_contrast.") for name in weights)
    zeros = {name: torch.zeros_like(tensor) if "extras" in name else tensor for name, tensor in weights.items()}
    assert encoder.run(torch.rand(1, 2, 8, 8), zeros).abs().max() == 0
    assert not any("extras" in name for name in encoder_weights(workspace.network))
