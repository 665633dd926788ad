"""Copies that graphs can hold give the network's own output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyclinic.export.plain_network import BatchStatistics, plain_network
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_task


@pytest.mark.parametrize("norm", ["batch", "batch-nostats", "group", "instance"])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_copy_gives_the_same_logits(norm: str, dims: int) -> None:
    network = build_workspace(tiny_recipe("fedavg+fsr", network={"norm": norm}), tiny_task(dims)).network
    images = torch.rand(2, 2, *[8] * dims)
    copied = plain_network(network)
    torch.testing.assert_close(copied(images), network.eval()(images), atol=1e-5, rtol=1e-5)
    assert not any(weight.requires_grad for weight in copied.parameters())
    assert any(isinstance(module, BatchStatistics) for module in copied.modules()) == (norm == "batch-nostats")


def test_the_network_itself_stays_as_it_is() -> None:
    network = build_workspace(tiny_recipe("fedbcs"), tiny_task()).network.train()
    kinds, weights = [type(m) for m in network.modules()], {n: w.clone() for n, w in network.state_dict().items()}
    plain_network(network)
    assert [type(m) for m in network.modules()] == kinds
    assert network.training
    assert all(weight.requires_grad for weight in network.parameters())
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(weight, weights[name])


def test_any_module_may_say_what_stands_in_its_place() -> None:
    class Strange(nn.Module):
        def for_export(self) -> nn.Module:
            return nn.ReLU()

    replaced = plain_network(nn.Sequential(nn.Sequential(Strange()), nn.Identity()))
    torch.testing.assert_close(replaced(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
