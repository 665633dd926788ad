from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mixed_sites import component_of, mixed_server, mixed_site, mixed_step, shake, site_round
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from support import assert_same, final_tensors, tiny_recipe, tiny_task

PIA = "fedavg+perturbation_invariance"
KINDS = ["dropout", "noise", "vat"]


def prepared(settings: str = "", counts: tuple[int, int] = (3, 2), dims: int = 2) -> tuple[Any, SiteRound]:
    workspace = build_workspace(tiny_recipe(f"{PIA}({settings})", network={"width": 6, "depth": 2}), tiny_task(dims))
    shake(workspace.network, 1)
    return component_of(workspace, "perturbation_invariance"), site_round(workspace, mixed_site("north", *counts, dims))


def perturbed(kind: str, pyramid: Sequence[Tensor]) -> list[Tensor]:
    """The same draws as in the step, number by number."""
    generator = torch.Generator().manual_seed(3)  # that of mixed_step
    found = []
    for level in pyramid:
        if kind == "noise":
            found.append(level * (1 + 0.4 * (2 * torch.rand(level.shape, generator=generator) - 1)))
            continue
        drawn = torch.rand(level.shape[:2], generator=generator)
        rows = []
        for image, keeps in zip(level, drawn, strict=True):
            rows.append(torch.stack([c / 0.6 if keep < 0.6 else 0 * c for c, keep in zip(image, keeps, strict=True)]))
        found.append(torch.stack(rows))
    return found


def naive_mean_square(first: Tensor, second: Tensor) -> Tensor:
    return sum((a - b) ** 2 for a, b in zip(first.flatten(), second.flatten(), strict=True)) / first.numel()


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", ["dropout", "noise"])
@pytest.mark.parametrize("stop", [False, True])
def test_value_and_gradient_are_those_of_equation_10(kind: str, dims: int, stop: bool) -> None:
    """Against an independent copy of the network, which goes through encoder and both decodes on its own."""
    settings = f"weight=0.5, perturbation={kind}, probability=0.4, range=0.4, stop_gradient={str(stop).lower()}"
    component, site = prepared(settings, dims=dims)
    twin = copy.deepcopy(site.network).train()
    step = mixed_step(site)
    (ours,) = component.loss(step).values()
    pyramid = twin.encode(step.inputs)
    clean, moved = twin.decode(pyramid)[-1], twin.decode(perturbed(kind, pyramid))[-1]
    gap = (clean.detach() if stop else clean) - moved
    wanted = 0.5 * (gap**2).sum() / gap.numel()
    assert wanted > 1e-3
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)
    pairs = (ours, site.network), (wanted, twin)
    both = [torch.autograd.grad(term, list(network.parameters()), allow_unused=True) for term, network in pairs]
    reached = [(a, b) for a, b in zip(*both, strict=True) if b is not None]
    assert len(reached) > len(both[0]) // 2
    assert any(b.abs().max() > 1e-3 for _, b in reached)
    for a, b in reached:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert all(a is None for a, b in zip(*both, strict=True) if b is None)


def test_equation_10_as_printed_differs_by_a_constant() -> None:
    """With as many labelled as unlabelled images its two means of squared norms are 2 C H W of ours."""
    component, site = prepared("weight=1, probability=0.4", counts=(3, 3))
    step = mixed_step(site)
    ours = component.loss(step)["perturbation_invariance"].detach()
    with torch.no_grad():
        twin = copy.deepcopy(site.network)
        clean, moved = step.output.decoder[-1], twin.decode(perturbed("dropout", step.output.encoder))[-1]
        printed = sum(naive_mean_square(a, b) * a.numel() for a, b in zip(clean[:3], moved[:3], strict=True)) / 3
        printed += sum(naive_mean_square(a, b) * a.numel() for a, b in zip(clean[3:], moved[3:], strict=True)) / 3
    torch.testing.assert_close(printed, ours * 2 * clean[0].numel(), rtol=1e-4, atol=1e-5)


def test_stop_gradient_leaves_the_perturbed_side_alone() -> None:
    both, one = (
        torch.autograd.grad(component.loss(step)["perturbation_invariance"], step.output.decoder[-1], allow_unused=True)
        for component, step in (
            (component, mixed_step(site))
            for component, site in (prepared(f"stop_gradient={stop}") for stop in ("false", "true"))
        )
    )
    assert both[0] is not None
    assert both[0].abs().max() > 0
    assert one[0] is None


# ---- virtual adversarial training ------------------------------------------------------------------------------------


def levels_of(component: Any, step: Step, monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """What the decoder gets, call by call."""
    calls: list[list[Tensor]] = []
    decode = UNet.decode
    with monkeypatch.context() as patch:
        patch.setattr(UNet, "decode", lambda n, p: (calls.append([f.detach().clone() for f in p]), decode(n, p))[1])
        component.loss(step)
    return calls


def test_vat_goes_along_the_gradient_with_the_length_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site = prepared("perturbation=vat, radius=0.5")
    step = mixed_step(site)
    tried, found = levels_of(component, step, monkeypatch)
    twin = copy.deepcopy(site.network)
    small = [(a - f.detach()).requires_grad_() for a, f in zip(tried, step.output.encoder, strict=True)]
    moved = twin.decode([f.detach() + d for f, d in zip(step.output.encoder, small, strict=True)])[-1]
    gradients = torch.autograd.grad((step.output.decoder[-1].detach() - moved).square().mean(), small)
    for clean, changed, first, gradient in zip(step.output.encoder, found, small, gradients, strict=True):
        deviation = clean.detach().flatten().std(correction=0)
        assert 0 < first.abs().max() <= 0.01 * deviation * 1.001
        for image in range(len(clean)):
            change, slope = (changed[image] - clean[image]).detach().flatten(), gradient[image].flatten()
            assert float(change.square().mean().sqrt()) == pytest.approx(0.5 * float(deviation), rel=1e-3)
            assert float(torch.cosine_similarity(change, slope, 0)) > 0.99


def test_vat_finds_a_worse_direction_than_chance() -> None:
    component, site = prepared("perturbation=vat, radius=0.1, weight=1")
    step = mixed_step(site)
    worst = float(component.loss(step)["perturbation_invariance"].detach())
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        random = []
        for f in step.output.encoder:
            noise = torch.randn(f.shape, generator=generator)
            length = noise.flatten(1).square().mean(1).sqrt().reshape(-1, *[1] * (f.dim() - 1))
            random.append(f.detach() + 0.1 * f.detach().std() * noise / length)
        with torch.no_grad():
            moved = copy.deepcopy(site.network).decode(random)[-1]
            assert float((step.output.decoder[-1] - moved).square().mean()) < worst / 2


def test_vat_on_features_without_a_slope_changes_nothing() -> None:
    component, site = prepared("perturbation=vat")
    with torch.no_grad():
        for parameter in site.network.parameters():
            parameter.zero_()
    term = component.loss(mixed_step(site))["perturbation_invariance"]
    assert term.item() == 0
    gradients = torch.autograd.grad(term, list(site.network.parameters()), allow_unused=True)
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


# ---- passes and traces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_extra_decode_and_no_extra_encode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    component, site = prepared(f"perturbation={kind}")
    calls: list[str] = []
    for name in ("encode", "decode", "head"):
        own = getattr(UNet, name)
        monkeypatch.setattr(UNet, name, lambda n, x, own=own, name=name: (calls.append(name), own(n, x))[1])
    step = mixed_step(site)
    assert calls == ["encode", "decode", "head"]
    calls.clear()
    component.loss(step)
    assert calls == ["decode"] * (2 if kind == "vat" else 1)  # VAT needs one to find its direction


@pytest.mark.parametrize("kind", KINDS)
def test_no_trace_in_running_statistics_gradients_or_features(kind: str) -> None:
    component, site = prepared(f"perturbation={kind}")
    step = mixed_step(site)
    before = {n: t.clone() for n, t in site.network.state_dict().items()}
    assert any(n.endswith("decoder.0.convs.conv_0.adn.N.running_mean") for n in before)
    features = [f.detach().clone() for f in (*step.output.encoder, *step.output.decoder)]
    component.loss(step)
    assert_same(before, dict(site.network.state_dict()))
    assert all(p.grad is None for p in site.network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(features, (*step.output.encoder, *step.output.decoder), strict=True))
    norms = [m for m in site.network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms
    assert all(norm.track_running_stats and norm.training for norm in norms)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [(3, 0), (0, 2)])
def test_labelled_or_unlabelled_images_alone(kind: str, counts: tuple[int, int]) -> None:
    component, site = prepared(f"perturbation={kind}", counts)
    term = component.loss(mixed_step(site))["perturbation_invariance"]
    assert term.isfinite()
    assert term > 0
    term.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in site.network.parameters())


def test_nothing_dropped_costs_nothing() -> None:
    component, site = prepared("probability=0")
    assert component.loss(mixed_step(site))["perturbation_invariance"].item() == 0


def test_weight_zero_draws_nothing_and_adds_nothing() -> None:
    component, site = prepared("weight=0")
    step = mixed_step(site)
    before = step.generator.get_state()
    assert component.loss(step) == {}
    assert torch.equal(before, step.generator.get_state())


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_compared_in_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    component, site = prepared(f"perturbation={kind}, weight=1")
    step = mixed_step(site)
    step.output.encoder = [f.detach().bfloat16() for f in step.output.encoder]
    seen: list[Tensor] = []

    def decode(_: UNet, pyramid: Sequence[Tensor]) -> list[Tensor]:
        assert all(f.dtype == torch.bfloat16 for f in pyramid)
        seen.append(pyramid[0] + sum(f.mean((1, 2, 3), keepdim=True) for f in pyramid[1:]))
        return seen[-1:]

    monkeypatch.setattr(UNet, "decode", decode)
    step.output.decoder = site.network.decode(step.output.encoder)
    with torch.autocast("cpu", torch.bfloat16):
        term = component.loss(step)["perturbation_invariance"]
    assert term.dtype == torch.float32
    torch.testing.assert_close(term, (seen[0].float() - seen[-1].float()).square().mean())
    assert term > 0


# ---- in a federation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_repeats_and_weight_zero_is_fedavg(kind: str, tmp_path: Path) -> None:
    ends, own = {}, f"{PIA}(perturbation={kind})"
    for name, method in (("a", own), ("b", own), ("zero", f"{PIA}(weight=0)"), ("plain", "fedavg")):
        recipe = tiny_recipe(method, training={"rounds": 1, "local_epochs": 1})
        server = mixed_server(tmp_path / name, recipe, {"north": (3, 2), "south": (2, 3)})
        server.fit()
        ends[name] = final_tensors(server)
    assert_same(ends["a"], ends["b"])
    assert_same(ends["zero"], ends["plain"])
    assert any(not torch.equal(t, ends["plain"][n]) for n, t in ends["a"].items())
