"""The memory of a training, from a small image."""

from __future__ import annotations

import pytest
import torch

from polyclinic.federation.footprint import inference_bytes, training_bytes
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.registry import methods
from support import tiny_recipe, tiny_task


def kept_outputs(workspace, images: torch.Tensor) -> int:  # type: ignore[no-untyped-def]
    """The bytes of the outputs of all layers, from a real pass."""
    total = 0

    def add(module: object, inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        total += output.numel() * 4

    hooks = [m.register_forward_hook(add) for m in workspace.network.modules() if not list(m.children())]
    workspace.network(images)
    for hook in hooks:
        hook.remove()
    return total


def test_activations_are_counted_as_a_real_pass_keeps_them() -> None:
    small, large = tiny_recipe("fedavg"), tiny_recipe("fedavg", training={"batch_size": 6})
    workspace = build_workspace(small, tiny_task())
    outputs = kept_outputs(workspace, torch.rand(2, 2, 16, 16))
    first = training_bytes(workspace, (16, 16))
    second = training_bytes(build_workspace(large, tiny_task()), (16, 16))
    assert second - first == 2 * 2 * outputs, "four more images, the outputs of each and their gradients"


def test_a_pass_without_gradients_needs_less_and_grows_with_the_batch() -> None:
    workspace = build_workspace(tiny_recipe("fedavg"), tiny_task())
    outputs = kept_outputs(workspace, torch.rand(2, 2, 16, 16))
    assert inference_bytes(workspace, 4, (16, 16)) - inference_bytes(workspace, 2, (16, 16)) == outputs
    assert inference_bytes(workspace, 2, (16, 16)) < training_bytes(workspace, (16, 16))


def test_three_dimensions_and_inserted_modules_are_counted_and_the_network_stays_where_it_is() -> None:
    plain, more = (build_workspace(tiny_recipe(method), tiny_task(3)) for method in ("fedavg", "fedbcs"))
    assert training_bytes(plain, (8, 8, 8)) < training_bytes(more, (8, 8, 8))
    assert all(parameter.device.type == "cpu" for parameter in more.network.parameters())


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_can_be_counted_and_nothing_changes(method: str) -> None:
    workspace = build_workspace(tiny_recipe(method), tiny_task())
    before = {name: tensor.clone() for name, tensor in workspace.network.state_dict().items()}
    random, mode = torch.get_rng_state(), workspace.network.training
    assert training_bytes(workspace, (64, 48)) > training_bytes(workspace, (32, 32))
    assert torch.equal(random, torch.get_rng_state())
    assert workspace.network.training == mode
    assert all(torch.equal(tensor, before[name]) for name, tensor in workspace.network.state_dict().items())
