from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.features.lddg import Lddg, VariationalMap, divergence_from_normal, singular_value
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.base import load_weights
from support import (
    Interrupted,
    Keeper,
    Keeping,
    Killer,
    assert_same,
    call,
    final_tensors,
    tiny_recipe,
    tiny_server,
    tiny_site,
    tiny_task,
)

CPU = torch.device("cpu")


# ---- equations -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 3]), st.integers(0, 10**6))
def test_the_divergence_is_that_of_torch_distributions(batch: int, latent: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, latent, *[3] * dims)
    mean, log_variance = (torch.randn(shape, generator=generator) for _ in range(2))
    normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
    wanted = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).mean()
    torch.testing.assert_close(divergence_from_normal(mean, log_variance), wanted)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10**6), st.data())
def test_the_singular_value_and_its_gradient_are_those_of_a_decomposition(
    count: int, columns: int, seed: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, min(count, columns) - 1))
    rows = torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    first, second = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    ours, wanted = singular_value(first, number), torch.linalg.svdvals(second)[number]
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-7)
    if float(wanted.detach()) > 1e-3:
        ours.backward()
        wanted.backward()
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("count", "rank"), [(50, 2), (2, 8), (1, 8), (50, 0)])
def test_latents_of_low_rank_have_a_value_near_zero_and_a_gradient_that_is_finite(count: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, rank, generator=generator) @ torch.randn(rank, 8, generator=generator)
    rows = rows.requires_grad_()
    value = singular_value(rows, 2)
    value.backward()
    assert 0 <= float(value.detach()) < 1e-4
    assert rows.grad is not None
    assert rows.grad.norm() <= 1.01


def test_float32_rows_far_from_the_origin_keep_their_small_singular_value() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 0.01 * torch.randn(2000, 8, generator=generator) + 30 * torch.randn(2000, 1, generator=generator)
    wanted = torch.linalg.svdvals(rows.double())[2]
    torch.testing.assert_close(singular_value(rows, 2).double(), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_map_draws_in_training_and_gives_means_otherwise(dims: int) -> None:
    torch.manual_seed(0)
    module = VariationalMap(5, 3, 64, dims)
    assert [tuple(p.shape[:2]) for n, p in module.named_parameters() if n.endswith("weight")] == 2 * [(64, 5), (3, 64)]
    features = torch.randn(2, 5, *[4] * dims)

    def by_hand(network: torch.nn.Module) -> torch.Tensor:
        first, _, second = network
        flat = features.flatten(2)
        hidden = torch.einsum("oc,bcn->bon", first.weight.flatten(1), flat) + first.bias[:, None]
        found = torch.einsum("oc,bcn->bon", second.weight.flatten(1), hidden.clamp_min(0)) + second.bias[:, None]
        return found.view(2, 3, *features.shape[2:])

    mean, log_variance = by_hand(module.mean), by_hand(module.log_variance)
    module.seed = 11
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(11))
    torch.testing.assert_close(module(features), mean + log_variance.exp().sqrt() * noise, rtol=1e-4, atol=1e-5)
    assert torch.equal(module(features), module(features))
    module.eval()
    torch.testing.assert_close(module(features), mean, rtol=1e-4, atol=1e-5)


def test_half_precision_draws_in_single() -> None:
    torch.manual_seed(0)
    module = VariationalMap(4, 3, 8, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.randn(2, 4, 3, 3)).dtype == torch.float32


# ---- the component at a site -----------------------------------------------------------------------------------------


def component_of(workspace: Workspace) -> Lddg:
    (found,) = (c for c in workspace.fresh_components({}) if isinstance(c, Lddg))
    return found


def site_of(workspace: Workspace, dims: int = 2) -> SiteRound:
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    return SiteRound("north", 1, workspace.network, received, tiny_site("north", 3, dims), CPU, torch.Generator(), 3)


def prepared(expression: str, dims: int = 2) -> tuple[Lddg, Step]:
    # With ReLU before the classifier the features of so small a network may all be off.
    recipe = tiny_recipe(expression, network={"last_activation": "leaky-relu"})
    workspace = build_workspace(recipe, tiny_task(dims))
    component, site = component_of(workspace), site_of(workspace, dims)
    site.network.train()
    images, labels = site.data.images.batch(torch.arange(3))
    generator = torch.Generator().manual_seed(0)
    return component, Step(site, site.network, images, labels, generator, 1, 0, 0, True, 0.5, 0.1)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_terms_are_those_of_the_step_s_own_pass(dims: int) -> None:
    component, step = prepared("fedavg+lddg(weight=2, pixels=100)", dims)
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    step.network(torch.rand_like(step.images))  # another component's pass, with a gradient
    terms = component.loss(step)
    replay = torch.Generator().manual_seed(0)
    seed = int(torch.randint(2**62, (), generator=replay))
    module, features = component._module, step.output.decoder[-1]
    mean, log_variance = module.mean(features), module.log_variance(features)
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(seed))
    latents = mean + (log_variance / 2).exp() * noise
    torch.testing.assert_close(step.network.get_submodule("classifier.head")(latents), step.output.logits)
    kl = (0.5 * (mean**2 + log_variance.exp() - log_variance - 1)).mean()
    torch.testing.assert_close(terms["lddg_kl"], 2 * 0.01 * kl)
    total = 3 * 8**dims
    chosen = torch.randperm(total, generator=replay)[:100]
    rows = latents.movedim(1, -1).reshape(total, 8)[chosen]
    torch.testing.assert_close(terms["lddg_rank"], 2 * 0.001 * torch.linalg.svdvals(rows)[2], rtol=1e-4, atol=1e-7)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert not module.passes


@pytest.mark.parametrize(("off", "left"), [("kl", {"lddg_rank"}), ("low_rank", {"lddg_kl"})])
def test_a_term_of_weight_zero_is_not_there(off: str, left: set[str]) -> None:
    component, step = prepared(f"fedavg+lddg({off}=0)")
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    assert component.loss(step).keys() == left


def test_a_second_pass_over_a_step_sees_the_same_noise_and_pixels() -> None:
    component, step = prepared("fedavg+lddg(pixels=20)")
    component.on_images(step)
    values = []
    for _ in range(2):
        step.output = step.network.features(step.inputs)
        values.append(component.loss(step))
    assert values[0]["lddg_rank"] > 0
    torch.testing.assert_close(values[0], values[1])


def test_a_frozen_copy_in_the_middle_of_a_step_has_no_part_in_it() -> None:
    component, step = prepared("fedavg+lddg")
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    twin = step.site.frozen()
    assert not twin.get_submodule("classifier.lddg").passes
    assert component._module.passes
    # The pass has moved the running statistics of the network in training, not those of its twin.
    own = {name: twin.state_dict()[name] for name in step.network.buffer_names()}
    load_weights(step.network.eval(), own)
    assert torch.equal(twin(step.images), step.network(step.images))
    assert twin(step.images).std((2, 3)).min() > 1e-4, "and not because both see nothing"
    component.after_step(step)
    assert not component._module.passes


def test_two_pixels_have_no_third_singular_value() -> None:
    component, step = prepared("fedavg+lddg(pixels=2)")
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    assert float(component.loss(step)["lddg_rank"].detach()) < 1e-6


# ---- in the network --------------------------------------------------------------------------------------------------


SMALL_VIT = {"name": "vit", "patch": 4, "embedding": 6, "heads": 2, "layers": 2, "mlp": 8}


@pytest.mark.parametrize("network", [{"name": "unet"}, SMALL_VIT], ids=["unet", "vit"])
@pytest.mark.parametrize("dims", [2, 3])
def test_every_network_takes_the_head_and_puts_it_into_the_last_stage(network: dict[str, Any], dims: int) -> None:
    recipe = tiny_recipe("fedavg+lddg(latent=5, hidden=7)", network=network)
    first, second = (build_workspace(recipe, tiny_task(dims)) for _ in range(2))
    assert_same(first.exchanged_weights(), second.exchanged_weights())
    other = build_workspace(recipe.model_copy(update={"seed": 1}), tiny_task(dims)).network.state_dict()
    mine = {n: t for n, t in first.network.state_dict().items() if n.startswith("classifier.")}
    assert all(not torch.equal(t, other[n]) for n, t in mine.items())
    assert set(mine) == set(first.network.stages()["head"])
    assert set(mine) <= first.exchanged
    first.network.eval()
    images = torch.rand(2, 2, *[8] * dims)
    found = first.network(images)
    assert found.shape == (2, 3, *[8] * dims)
    assert torch.equal(found, first.network(images))


def test_a_network_without_a_classifier_gets_a_sentence() -> None:
    workspace = build_workspace(tiny_recipe("fedavg"), tiny_task())
    network = copy.deepcopy(workspace.network)
    del network.classifier
    with pytest.raises(PolyclinicError, match="no module 'classifier'"):
        Lddg(Lddg.Settings(), workspace.components[0].context).install(network)


@pytest.mark.parametrize("rank", [8, 9])
def test_a_rank_that_the_latents_cannot_exceed_gets_a_sentence(rank: int) -> None:
    with pytest.raises(PolyclinicError, match="must be smaller than latent = 8"):
        build_workspace(tiny_recipe(f"fedavg+lddg(rank={rank})"), tiny_task())


def test_the_inference_graph_has_no_randomness() -> None:
    workspace = build_workspace(tiny_recipe("fedavg+lddg"), tiny_task())
    network, images = workspace.network.eval(), torch.rand(1, 2, 8, 8)
    program = torch.export.export(network, (images,))
    assert not any("rand" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(images), network(images))


# ---- through a run ---------------------------------------------------------------------------------------------------


def semi_server(folder: Path, method: str, dims: int = 2, **more: Any) -> Server:
    """One site with both kinds of images, one with unlabelled, one with labelled ones alone."""
    server = tiny_server(folder, tiny_recipe(method, training={"rounds": 2, "local_epochs": 1}), dims, **more)
    sites = server.engine.sites  # type: ignore[attr-defined]
    sites["north"].data.images.labelled[:3] = False
    sites["south"].data.images.labelled[:] = False
    return server


COMBINED = [
    "fedcd+lddg",
    "dpl+lddg",
    "fixmatch+lddg",
    "fgasl+lddg",
    "rscfed+lddg",
    "augseg+randconv+lddg",
    "augseg+lddg+randconv",
]


@pytest.mark.parametrize("method", COMBINED)
def test_it_combines_with_methods_for_few_labels(method: str, tmp_path: Path) -> None:
    server = semi_server(tmp_path, method, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    for event in keeper.events:
        for terms in event["losses"].values():
            assert {"lddg_kl", "lddg_rank"} <= terms.keys()
            assert all(math.isfinite(value) for value in terms.values())
    assert all(t.isfinite().all() for t in final_tensors(server).values() if t.is_floating_point())


@pytest.mark.parametrize("method", ["fedavg", "moon", "harmofl", "fedbcs", "pathfl", "fedbn"])
def test_it_combines_with_other_methods(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(f"{method}+lddg", training={"rounds": 2, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert all({"lddg_kl", "lddg_rank"} <= terms.keys() for terms in keeper.events[-1]["losses"].values())


def test_a_killed_run_resumes_and_only_weights_leave(tmp_path: Path) -> None:
    whole = semi_server(tmp_path / "whole", "augseg+lddg", 3, engine=Keeping)
    start = {n: t.clone() for n, t in whole.state.weights.items()}
    whole.fit()
    heads = [n for n in start if n.startswith("classifier.")]
    assert len(heads) == 10
    assert all(not torch.equal(start[n], whole.state.weights[n]) for n in heads)
    updates = whole.engine.updates  # type: ignore[attr-defined]
    assert not any(update.shared for update in updates)
    killer = Killer(lambda what, number, _: what == "site" and number == 1)
    with pytest.raises(Interrupted):
        semi_server(tmp_path / "killed", "augseg+lddg", 3, observer=killer).fit()
    resumed = semi_server(tmp_path / "killed", "augseg+lddg", 3)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


def test_weight_zero_is_the_method_without_it(tmp_path: Path) -> None:
    servers = [semi_server(tmp_path / m, m) for m in ("augseg", "augseg+lddg(weight=0)")]
    for server in servers:
        server.fit()
    assert_same(*(final_tensors(server) for server in servers))


def test_predictions_use_the_means(finished: Callable[..., Path], tiny_federation: Path, tmp_path: Path) -> None:
    run = finished("fedavg+lddg")
    masks = []
    for out in ("first", "second"):
        called = call("predict", run, tiny_federation / "north" / "images", "--out", tmp_path / out)
        assert called.code == 0, called.err
        masks.append([path.read_bytes() for path in sorted((tmp_path / out).glob("*.png"))])
    assert len(masks[0]) == 5
    assert masks[0] == masks[1]


def test_an_overflow_is_a_term_that_is_no_number_and_no_crash() -> None:
    rows = torch.full((5, 3), torch.inf, requires_grad=True)
    assert singular_value(rows, 1).isnan()
