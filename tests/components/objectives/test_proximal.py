from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.components.step import Step
from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_server, tiny_site, tiny_task


def test_gradient_and_value_are_those_of_the_term_in_the_loss() -> None:
    """FedProx eq. 2 written out: backward through (mu / 2) ||w - w^r||^2 gives the same gradients."""
    mu = 0.3
    workspace = build_workspace(tiny_recipe(f"fedprox(mu={mu})"), tiny_task())
    component = next(c for c in workspace.fresh_components({}) if c.name == "proximal")
    network = workspace.network
    start = [p.detach().clone() for p in network.parameters()]
    component.receive(type("Round", (), {"network": network})(), {})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    images, labels = tiny_site("north", 3).images.batch(torch.arange(3))

    def loss() -> torch.Tensor:
        return segmentation_loss(network(images), labels, "ce", "count")

    term = 0.5 * mu * sum((p - s).square().sum() for p, s in zip(network.parameters(), start, strict=True))
    wanted = torch.autograd.grad(loss() + term, list(network.parameters()))
    network.zero_grad()
    loss().backward()
    step = Step(None, network, images, labels, torch.Generator(), 0, 0, 0, True, 0.0, 0.1)
    component.on_gradients(step)
    for parameter, gradient in zip(network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(step.losses["proximal"], term.detach())


@pytest.mark.parametrize(("mu", "nearer"), [(0.0, False), (100.0, True)])
def test_a_strong_pull_holds_the_weights_near_the_received_ones(mu: float, nearer: bool, tmp_path: Path) -> None:
    plain = distance_of("fedavg", tmp_path / "plain")
    pulled = distance_of(f"fedprox(mu={mu})", tmp_path / "pulled")
    assert (pulled < 0.8 * plain) if nearer else (pulled == plain)


def distance_of(method: str, folder: Path) -> float:
    recipe = tiny_recipe(method, training={"optimizer": "sgd", "lr": 0.005, "local_epochs": 4})
    server = tiny_server(folder, recipe)
    start = server.state.weights
    (update,) = server.engine.train(Broadcast(0, start), ["north"])
    names = [n for n, _ in server.workspace.network.named_parameters()]
    return float(sum((update.weights[n] - start[n]).square().sum() for n in names))
