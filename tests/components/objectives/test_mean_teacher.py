"""RSCFed's mean teacher against the equations written out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mixed_sites import component_of, mixed_server, mixed_site, mixed_step, shake, site_round
from polyclinic.components.rounds import SiteRound
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from support import Keeping, assert_same, final_tensors, tiny_recipe, tiny_task

Models = dict[str, Tensor]


def prepared(expression: str, counts: tuple[int, int] = (2, 3), dims: int = 2) -> tuple[Any, SiteRound, UNet]:
    """A component after ``receive``, the site whose network has moved on since, and a copy of the received network."""
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    shake(workspace.network, 7)
    received = copy.deepcopy(workspace.network)
    site = site_round(workspace, mixed_site("north", *counts, dims))
    component = component_of(workspace, "mean_teacher")
    component.receive(site, {})
    shake(workspace.network, 8, strength=0.1)
    return component, site, received  # type: ignore[return-value]


@pytest.mark.parametrize(("dims", "temperature"), [(2, 0.5), (2, 2.0), (3, 0.5)])
def test_value_and_gradient_are_those_of_the_printed_term(dims: int, temperature: float) -> None:
    counts = (2, 1) if dims == 2 else (1, 1)
    component, site, received = prepared(f"rscfed(weight=0.7, ramp=0.4, temperature={temperature})", counts, dims)
    step = mixed_step(site, progress=0.1)
    with torch.no_grad():
        taught = received.eval()(step.weak).softmax(1)
    learnt = step.output.logits[counts[0] :].softmax(1)
    total = learnt.new_zeros(())
    for q, p in zip(*(t.movedim(1, -1).flatten(0, -2) for t in (taught, learnt)), strict=True):
        powers = [float(one) ** (1 / temperature) for one in q]
        for c, power in enumerate(powers):
            total = total + (p[c] - power / sum(powers)) ** 2
    wanted = 0.7 * 0.25 * total / (learnt.numel() / 3)
    ours = component.loss(step)["mean_teacher"]
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-7)
    parameters = list(site.network.parameters())
    gradients = [torch.autograd.grad(t, parameters, retain_graph=True, allow_unused=True) for t in (ours, wanted)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("ramp", "progress", "share"), [(0.4, 0, 0), (0.4, 0.3, 0.75), (0.4, 0.5, 1), (0, 0, 1)])
def test_the_weight_rises_in_a_line(ramp: float, progress: float, share: float) -> None:
    component, site, _ = prepared(f"rscfed(ramp={ramp})")
    whole = component.loss(mixed_step(site, progress=1.0))["mean_teacher"].detach()
    assert whole > 0
    now = component.loss(mixed_step(site, progress=progress))["mean_teacher"]
    assert now.requires_grad, "a batch without labels needs a loss even where the weight is still 0"
    torch.testing.assert_close(now.detach(), share * whole)


def test_the_teacher_warms_up_step_by_step_and_goes_on_in_the_next_round() -> None:
    component, site, received = prepared("rscfed(ema=0.7)")
    naive = {n: p.detach().clone() for n, p in received.named_parameters()}
    kept: Models = {}
    for t, e in enumerate([0, 1 / 2, 2 / 3, 0.7, 0.7, 0.7]):
        if t == 3:  # a new round: other weights are received, the teacher stays
            component.share(site)
            kept = component.state
            shake(site.network, 50)
            site = site_round(build_workspace(tiny_recipe("rscfed(ema=0.7)"), tiny_task()), site.data, number=2)
            component = component_of(build_workspace(tiny_recipe("rscfed(ema=0.7)"), tiny_task()), "mean_teacher", kept)
            component.receive(site, {})
        shake(site.network, 20 + t)
        for name, weight in site.network.named_parameters():
            naive[name] = e * naive[name] + (1 - e) * weight.detach()
        component.after_step(mixed_step(site, forward=False))
        teacher = component._teacher.network
        assert not teacher.training
        for name, weight in teacher.named_parameters():
            torch.testing.assert_close(weight, naive[name], rtol=1e-5, atol=1e-6)
        if t == 0:
            assert_same(teacher.state_dict(), site.network.state_dict())
        for name in site.network.buffer_names():
            assert torch.equal(teacher.state_dict()[name], site.network.state_dict()[name])
    assert int(kept["steps"]) == 3
    assert {name.removeprefix("teacher/") for name in kept} == {"steps", *site.network.state_dict()}


def test_the_teacher_looks_once_in_eval_mode_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site, _ = prepared("rscfed")
    step = mixed_step(site)
    before = {n: t.clone() for n, t in site.network.state_dict().items()}
    seen: list[Tensor] = []
    encode = UNet.encode

    def counting(network: UNet, images: Tensor) -> list[Tensor]:
        assert network is not site.network
        assert not network.training
        assert not torch.is_grad_enabled()
        seen.append(images)
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counting)
    first, again = (component.loss(step)["mean_teacher"] for _ in range(2))
    assert torch.equal(first, again)
    assert len(seen) == 1
    assert seen[0] is step.weak
    assert_same(before, site.network.state_dict())


@pytest.mark.parametrize(("expression", "counts"), [("rscfed", (3, 0)), ("rscfed(weight=0)", (2, 3))])
def test_without_unlabelled_images_or_weight_there_is_no_teacher(expression: str, counts: tuple[int, int]) -> None:
    component, site, _ = prepared(expression, counts)
    step = mixed_step(site)
    assert component.loss(step) == {}
    component.after_step(step)
    assert component.share(site) == {}
    assert component.state == {}


def test_the_teacher_of_a_run_is_the_average_of_the_models_that_left(tmp_path: Path) -> None:
    """One step a round, so that every trained model is an update; warm-up until 1 - 1 / (t + 1) exceeds 0.6."""
    recipe = tiny_recipe("rscfed(ema=0.6)", training={"rounds": 5, "local_epochs": 1, "steps_per_epoch": 1})
    server = mixed_server(tmp_path, recipe, {"north": (2, 3), "south": (2, 2)}, engine=Keeping)
    server.fit()
    trained = [u.weights for u in server.engine.updates if u.site == "north"]  # type: ignore[attr-defined]
    assert len(trained) == 5
    found = final_tensors(server)
    for name in (n for n, _ in server.workspace.network.named_parameters()):
        teacher = trained[0][name].double()
        for e, weights in zip((1 / 2, 0.6, 0.6, 0.6), trained[1:], strict=True):
            teacher = e * teacher + (1 - e) * weights[name].double()
        torch.testing.assert_close(found[f"north/mean_teacher/teacher/{name}"].double(), teacher, rtol=1e-5, atol=1e-6)
