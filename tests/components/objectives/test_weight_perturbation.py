"""HarmoFL's weight perturbation against gradients at weights that were moved by hand."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from polyclinic.components.step import Step
from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_site, tiny_task


def a_step(workspace: Workspace) -> tuple[Step, torch.Tensor, torch.Tensor]:
    """A step after its first backward, with a ``recompute`` like that of the local training."""
    data, labels = tiny_site("north", 3).images.batch(torch.arange(3))
    network = workspace.network.train()
    step = Step(None, network, data, labels, torch.Generator(), 0, 0, 0, True, 0.0, 0.1)  # type: ignore[arg-type]

    def gradients() -> torch.Tensor:
        network.zero_grad()
        step.output = network.features(data)
        step.losses = {"segmentation": segmentation_loss(step.output.logits, labels, "ce", "count")}
        step.losses["segmentation"].backward()
        return step.losses["segmentation"].detach()

    step.recompute = gradients
    gradients()
    return step, data, labels


def perturbation(workspace: Workspace) -> object:
    return next(c for c in workspace.fresh_components({}) if c.name == "weight_perturbation")


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("alpha", [0.05, 0.7])
def test_the_gradient_is_that_at_the_perturbed_weights(norm: str, alpha: float) -> None:
    workspace = build_workspace(
        tiny_recipe(f"fedavg+weight_perturbation(alpha={alpha})", network={"norm": norm}), tiny_task()
    )
    naive = copy.deepcopy(workspace.network).train()
    step, data, labels = a_step(workspace)
    before = {n: t.clone() for n, t in workspace.network.state_dict().items()}
    first, losses, output = [p.grad.clone() for p in workspace.network.parameters()], step.losses, step.output
    perturbation(workspace).on_gradients(step)  # type: ignore[attr-defined]

    weights = list(naive.parameters())
    gradients = torch.autograd.grad(segmentation_loss(naive(data), labels, "ce", "count"), weights)
    length = sum(float(g.double().square().sum()) for g in gradients) ** 0.5
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight += alpha * gradient / length
    wanted = torch.autograd.grad(segmentation_loss(naive(data), labels, "ce", "count"), weights)

    assert any(not torch.allclose(a, b, rtol=1e-2) for a, b in zip(first, wanted, strict=True))
    for parameter, gradient in zip(workspace.network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    # Weights, running statistics and their counters are exactly those after the first pass.
    assert_same(before, dict(workspace.network.state_dict()))
    assert step.losses is losses
    assert step.output is output


def test_weights_come_back_when_the_second_pass_fails_and_a_gradient_of_zero_moves_nothing() -> None:
    workspace = build_workspace(tiny_recipe("fedavg+weight_perturbation"), tiny_task())
    step, _, _ = a_step(workspace)
    before = {n: t.clone() for n, t in workspace.network.state_dict().items()}
    seen: list[dict[str, torch.Tensor]] = []

    def fail() -> torch.Tensor:
        seen.append({n: t.clone() for n, t in workspace.network.state_dict().items()})
        raise RuntimeError("no memory")

    step.recompute = fail
    with pytest.raises(RuntimeError, match="no memory"):
        perturbation(workspace).on_gradients(step)  # type: ignore[attr-defined]
    assert_same(before, dict(workspace.network.state_dict()))
    moved = sum(float((seen[0][n] - before[n]).square().sum()) for n, _ in workspace.network.named_parameters()) ** 0.5
    assert moved == pytest.approx(0.05, rel=1e-4)
    assert all(m.track_running_stats for m in workspace.network.modules() if isinstance(m, torch.nn.BatchNorm2d))
    for parameter in workspace.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(RuntimeError, match="no memory"):
        perturbation(workspace).on_gradients(step)  # type: ignore[attr-defined]
    assert_same(before, seen[1])


@pytest.mark.parametrize(("method", "passes"), [("fedavg", 1), ("harmofl", 2), ("harmofl(alpha=0)", 1)])
def test_passes_and_running_statistics_of_a_round_are_counted(method: str, passes: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(method))
    forward: list[int] = []
    backward: list[int] = []
    server.workspace.network.encoder[0].register_forward_hook(lambda *_: forward.append(1))
    server.workspace.network.classifier.register_full_backward_hook(lambda *_: backward.append(1))
    (update,) = server.engine.train(Broadcast(0, server.state.weights), ["north"])
    assert isinstance(update, Update)
    assert update.steps == 6
    assert len(forward) == len(backward) == passes * update.steps
    tracked = [t for n, t in update.weights.items() if n.endswith("num_batches_tracked")]
    assert tracked
    assert all(int(t) == update.steps for t in tracked)


def test_strength_zero_is_fedavg_bit_for_bit_and_the_default_is_not(tmp_path: Path) -> None:
    ends = {}
    for method in ("fedavg", "fedavg+weight_perturbation(alpha=0)", "fedavg+weight_perturbation"):
        server = tiny_server(tmp_path / method, tiny_recipe(method, training={"rounds": 1, "local_epochs": 1}))
        server.fit()
        ends[method] = final_tensors(server)
    plain, zero, default = ends.values()
    assert_same(plain, zero)
    assert plain.keys() == default.keys()
    assert any(not torch.equal(plain[name], default[name]) for name in plain)


@pytest.mark.parametrize("method", ["harmofl+proximal(mu={})", "fedprox(mu={})+weight_perturbation"])
def test_a_pull_stays_in_the_gradient_whatever_the_order(method: str, tmp_path: Path) -> None:
    """The pull is added to the second gradient."""
    distances = []
    for mu in (0.0, 100.0):
        recipe = tiny_recipe(method.format(mu), training={"optimizer": "sgd", "lr": 0.005})
        server = tiny_server(tmp_path / str(mu), recipe)
        (update,) = server.engine.train(Broadcast(0, server.state.weights), ["north"])
        assert isinstance(update, Update)
        names = [n for n, _ in server.workspace.network.named_parameters()]
        distances.append(float(sum((update.weights[n] - server.state.weights[n]).square().sum() for n in names)))
    assert distances[1] < 0.8 * distances[0]
