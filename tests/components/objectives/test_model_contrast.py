from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import step_support
from polyclinic.components.base import Component
from polyclinic.components.objectives.model_contrast import contrast, represent
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.unet import UNet
from step_support import shake, site_of, step_of
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task


def naive(trained: torch.Tensor, frozen: Sequence[torch.Tensor], temperature: float) -> torch.Tensor:
    """MOON's term as it is printed, image by image; ``frozen[0]`` is the global model's."""
    total = trained.new_zeros(())
    for image, z in enumerate(trained):
        terms = []
        for vectors in frozen:
            other = vectors[image]
            cosine = sum(a * b for a, b in zip(z, other, strict=True)) / (
                sum(a * a for a in z).sqrt() * sum(b * b for b in other).sqrt()
            )
            terms.append(torch.exp(cosine / temperature))
        total = total - torch.log(terms[0] / sum(terms))
    return total / len(trained)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.sampled_from([0.1, 0.5, 2.0]), st.integers(0, 10**6))
def test_value_and_gradient_are_those_of_the_printed_term(
    batch: int, width: int, pool: int, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    trained = torch.randn(batch, width, generator=generator, dtype=torch.float64, requires_grad=True)
    frozen = torch.randn(1 + pool, batch, width, generator=generator, dtype=torch.float64)
    ours, wanted = contrast(trained, frozen, temperature), naive(trained, list(frozen), temperature)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(term, trained)[0] for term in (ours, wanted)))


def test_a_low_temperature_neither_overflows_nor_loses_its_gradient() -> None:
    trained = torch.tensor([[1.0, 0.1]], requires_grad=True)
    value = contrast(trained, torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]]), 0.001)
    value.backward()
    assert 1000 < value < math.inf
    assert trained.grad is not None
    assert 0 < trained.grad.abs().max() < math.inf


def test_a_dead_representation_gives_finite_numbers() -> None:
    trained = torch.zeros(2, 3, requires_grad=True)
    value = contrast(trained, torch.zeros(2, 2, 3), 0.5)
    value.backward()
    torch.testing.assert_close(value.detach(), torch.tensor(math.log(2)))
    assert trained.grad is not None
    assert trained.grad.isfinite().all()


# ---- the component at a site -----------------------------------------------------------------------------------------


def component_of(workspace: Workspace, state: dict[str, torch.Tensor]) -> Component:
    return step_support.component_of(workspace, "model_contrast", state)


def prepared(expression: str, dims: int = 2, earlier: int = 1) -> tuple[Component, SiteRound, list[UNet]]:
    """A component that ended ``earlier`` rounds, and independent copies of global and previous models, newest first."""
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    state: dict[str, torch.Tensor] = {}
    models: list[UNet] = []
    for number in range(earlier):
        shake(workspace.network, number)
        component = component_of(workspace, state)
        assert component.share(site_of(workspace, dims)) == {}
        state = component.state
        models.insert(0, copy.deepcopy(workspace.network))
    shake(workspace.network, 100)
    models.insert(0, copy.deepcopy(workspace.network))
    site = site_of(workspace, dims)
    component = component_of(workspace, state)
    component.receive(site, {})
    shake(workspace.network, 200)
    return component, site, models


def vector(network: UNet, bottleneck: torch.Tensor, projection: int) -> torch.Tensor:
    pooled = bottleneck.mean(tuple(range(2, bottleneck.dim())))
    if not projection:
        return pooled
    first, _, second = network.extras["model_contrast"]
    return second(first(pooled).clamp(min=0))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("projection", "pool"), [(0, 1), (5, 1), (5, 3)])
def test_the_term_compares_with_the_received_and_the_previous_models(dims: int, projection: int, pool: int) -> None:
    """Against whole copied networks in eval mode: value, and the gradient of every weight of the network."""
    expression = f"moon(mu=0.7, temperature=0.3, projection={projection}, pool={pool})"
    component, site, models = prepared(expression, dims, earlier=pool)
    network = site.network
    step = step_of(site)
    buffers = {n: network.state_dict()[n].clone() for n in network.buffer_names()}
    with torch.no_grad():
        frozen = [vector(m, m.eval().encode(step.images)[-1], projection) for m in models]
    assert all((vectors.norm(dim=1) > 0.01).all() for vectors in frozen)
    wanted = 0.7 * naive(vector(network, step.output.encoder[-1], projection), frozen, 0.3)
    (ours,) = component.loss(step).values()
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    parameters = list(network.parameters())
    gradients = [torch.autograd.grad(t, parameters, retain_graph=True, allow_unused=True) for t in (ours, wanted)]
    reached = [(a, b) for a, b in zip(*gradients, strict=True) if b is not None]
    assert len(reached) >= 4 + 4 * bool(projection)
    assert any(b.abs().max() > 1e-4 for _, b in reached)
    for a, b in reached:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert all(a is None for a, b in zip(*gradients, strict=True) if b is None)
    assert_same(buffers, {n: network.state_dict()[n] for n in buffers})


def test_a_second_pass_over_the_batch_reuses_the_frozen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site, _ = prepared("moon(pool=2)", earlier=2)
    step = step_of(site)
    calls = count_frozen_passes(monkeypatch, site.network)
    first, again = component.loss(step), component.loss(step)
    assert len(calls) == 3
    assert torch.equal(first["model_contrast"], again["model_contrast"])
    other = step_of(site, rows=2)
    component.loss(other)
    assert len(calls) == 6


def count_frozen_passes(monkeypatch: pytest.MonkeyPatch, trained: torch.nn.Module) -> list[bool]:
    calls: list[bool] = []
    encode = UNet.encode

    def counting(network: UNet, images: torch.Tensor) -> list[torch.Tensor]:
        if network is not trained:
            assert not network.training
            assert not torch.is_grad_enabled()
            calls.append(True)
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counting)
    return calls


def test_passes_of_a_run_none_in_the_first_round_two_a_step_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = tiny_server(tmp_path, tiny_recipe("moon"), sizes={"north": 5})
    calls = count_frozen_passes(monkeypatch, server.workspace.network)
    server.round()
    assert not calls
    server.round()
    steps = 2 * math.ceil(5 / 2)
    assert len(calls) == 2 * steps


@pytest.mark.parametrize("projection", [0, 4])
def test_the_first_round_adds_a_constant(projection: int) -> None:
    component, site, _ = prepared(f"moon(mu=3, projection={projection})", earlier=0)
    term = component.loss(step_of(site))["model_contrast"]
    assert not term.requires_grad
    torch.testing.assert_close(term, torch.tensor(3 * math.log(2)))


def test_the_first_round_trains_as_fedavg_and_the_second_does_not(tmp_path: Path) -> None:
    servers = [tiny_server(tmp_path / m, tiny_recipe(m)) for m in ("fedavg", "moon")]
    for server in servers:
        server.round()
    assert_same(*(server.state.weights for server in servers))
    for server in servers:
        server.round()
    first, second = (server.state.weights for server in servers)
    assert any(not torch.equal(first[n], second[n]) for n in first)


def test_a_batch_without_labelled_images_adds_nothing() -> None:
    component, site, _ = prepared("moon")
    step = step_of(site)
    step.strong, step.images, step.labels = step.images, step.images[:0], step.labels[:0]
    assert component.loss(step) == {}


def test_unlabelled_images_behind_the_labelled_ones_are_not_compared() -> None:
    component, site, _ = prepared("moon")
    site.network.eval()
    images, labels = site.data.images.batch(torch.arange(3))
    values = []
    for strong in (None, images[2:]):
        step = Step(site, site.network, images[:2], labels[:2], torch.Generator(), 1, 0, 0, True, 0.5, 0.1)
        step.strong = strong
        step.output = site.network.features(step.inputs)
        values.append(component.loss(step)["model_contrast"])
    torch.testing.assert_close(*values)


def test_half_precision_stays_outside_the_representation() -> None:
    network = build_workspace(tiny_recipe("moon(projection=4)"), tiny_task()).network
    bottleneck = torch.rand(2, network.widths["bottleneck"], 3, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        ours = represent(network, bottleneck)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, vector(network, bottleneck.float(), 4))


# ---- the site's memory and the projection ----------------------------------------------------------------------------


class Listening(InProcess):
    """Keeps every update."""

    heard: list[Update]

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            assert isinstance(answer, Update), answer
            self.heard = [*getattr(self, "heard", []), answer]
            yield answer


def test_the_pool_is_first_in_first_out_and_holds_what_the_representation_needs(tmp_path: Path) -> None:
    recipe = tiny_recipe("moon(pool=2, projection=3)", training={"rounds": 4})
    server = tiny_server(tmp_path, recipe, sizes={"north": 3}, engine=Listening)
    sizes = []
    for _ in range(4):
        server.round()
        sizes.append(sum("/model_contrast/" in name for name in final_tensors(server)))
    assert sizes[0] * 2 == sizes[1] == sizes[2] == sizes[3]
    heard: list[Update] = server.engine.heard  # type: ignore[attr-defined]
    assert [update.round for update in heard] == [0, 1, 2, 3]
    start = "north/model_contrast/"
    state = {n.removeprefix(start): t for n, t in final_tensors(server).items() if n.startswith(start)}
    needed = {n for n in server.workspace.network.state_dict() if n.startswith(("encoder.", "extras.model_contrast."))}
    assert state.keys() == {f"{age}/{name}" for age in (0, 1) for name in needed}
    for name in needed:
        assert torch.equal(state[f"0/{name}"], heard[3].weights[name])
        assert torch.equal(state[f"1/{name}"], heard[2].weights[name])
    assert not any(update.shared for update in heard)


def test_weights_of_taps_before_the_bottleneck_belong_to_the_memory() -> None:
    workspace = build_workspace(tiny_recipe("moon"), tiny_task())
    for tap in ("input", "bottleneck", "decoder0"):
        workspace.network.insert(tap, "scale", torch.nn.BatchNorm2d(workspace.network.widths[tap]))
    component = component_of(workspace, {})
    component.share(site_of(workspace))
    assert {"0/taps.input.scale.weight", "0/taps.bottleneck.scale.running_mean"} <= component.state.keys()
    assert not any("decoder" in name or "classifier" in name for name in component.state)


def test_frozen_weights_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe("moon"), tiny_task())
    frozen = set(workspace.network.stages()["encoder0"])
    monkeypatch.setattr(workspace.network, "frozen", lambda: frozen)
    component = component_of(workspace, {})
    component.share(site_of(workspace))
    assert component.state
    assert not {name.partition("/")[2] for name in component.state} & frozen


def test_the_projection_travels_and_is_averaged(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("moon(projection=6)"), engine=Listening)
    width = server.workspace.network.widths["bottleneck"]
    names = {n for n in server.workspace.network.state_dict() if n.startswith("extras.model_contrast.")}
    shapes = sorted(tuple(server.state.weights[n].shape) for n in names)
    assert shapes == sorted([(width, width), (width,), (6, width), (6,)])
    before = {n: server.state.weights[n].clone() for n in names}
    server.round()
    for name in names:
        torch.testing.assert_close(server.state.weights[name], before[name])
    server.round()
    heard = server.engine.heard[-3:]  # type: ignore[attr-defined]
    total = sum(update.samples for update in heard)
    for name in names:
        mean = sum(update.weights[name].double() * update.samples for update in heard) / total
        torch.testing.assert_close(server.state.weights[name].double(), mean, rtol=1e-5, atol=1e-7)
        assert not torch.equal(server.state.weights[name], before[name])


def test_strength_zero_installs_and_remembers_nothing() -> None:
    workspace = build_workspace(tiny_recipe("moon(mu=0, projection=6, pool=2)"), tiny_task())
    assert not workspace.network.extras
    component, site = component_of(workspace, {}), site_of(workspace)
    component.receive(site, {})
    assert component.loss(step_of(site)) == {}
    assert component.share(site) == {}
    assert component.state == {}


def test_one_round_gets_a_warning() -> None:
    warned = [
        len(component_of(build_workspace(tiny_recipe(method, training={"rounds": rounds}), tiny_task()), {}).warnings())
        for method, rounds in (("moon", 1), ("moon", 2), ("moon(mu=0)", 1))
    ]
    assert warned == [1, 0, 0]
