from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.base import Context
from polyclinic.components.features.afa import Afa, FeatureAlignment
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from step_support import BARE
from support import final_tensors, tiny_recipe, tiny_server, tiny_site, tiny_task

PREFIX = "taps.bottleneck.afa."


def filled(groups: int, mean: torch.Tensor, deviation: torch.Tensor, **own: Any) -> FeatureAlignment:
    module = FeatureAlignment(groups, **own)
    with torch.no_grad():
        module.mean.copy_(mean)
        module.deviation.copy_(deviation)
        module.count.fill_(3)
    return module


def aligned(features: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Equation 12 image by image; one number means the statistics of the whole map."""
    results = []
    for image in features:
        if len(mean) == 1:
            local = image.mean()
            spread = ((image - local).square().mean() + 1e-5).sqrt()
            results.append(deviation * (image - local) / spread + mean)
            continue
        maps = []
        for channel, mu, sigma in zip(image, mean, deviation, strict=True):
            local = channel.mean()
            spread = ((channel - local).square().mean() + 1e-5).sqrt()
            maps.append(sigma * (channel - local) / spread + mu)
        results.append(torch.stack(maps))
    return torch.stack(results)


# ---- equation 12 --------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3), st.integers(1, 3), st.integers(1, 4),
    st.booleans(), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_value_and_gradient_are_those_of_the_equation(
    size: list[int], batch: int, channels: int, channelwise: bool, training: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, channels, *size, generator=generator, dtype=torch.float64) * 2 + 1
    groups = channels if channelwise else 1
    mean, deviation = torch.randn(groups, generator=generator), torch.rand(groups, generator=generator)
    slopes = torch.randn(features.shape, generator=generator, dtype=torch.float64)
    features.requires_grad_()
    module = filled(groups, mean, deviation).train(training)
    wanted = aligned(features, mean.double(), deviation.double())
    result = module(features)
    torch.testing.assert_close(result, wanted)
    (expected,) = torch.autograd.grad((wanted * slopes).sum(), features)
    (found,) = torch.autograd.grad((result * slopes).sum(), features)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (2, 2, 2)])
def test_a_map_without_variance_becomes_the_mean(size: tuple[int, ...]) -> None:
    features = torch.full((1, 2, *size), 4.0, requires_grad=True)
    result = filled(2, torch.tensor([0.5, -1.0]), torch.tensor([2.0, 3.0])).train()(features)
    torch.testing.assert_close(
        result.detach(), torch.tensor([0.5, -1.0]).view(1, 2, *[1] * len(size)).expand_as(result)
    )
    result.square().sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_without_statistics_features_pass_unchanged(training: bool) -> None:
    module = FeatureAlignment(2).train(training)
    features = torch.randn(2, 2, 3, 3, requires_grad=True)
    assert torch.equal(module(features), features)
    traced = torch.export.export(module, (features.detach(),)).module()
    assert torch.equal(traced(features.detach()), features.detach())


def test_an_exported_model_uses_the_statistics() -> None:
    module = filled(2, torch.tensor([0.5, -1.0]), torch.tensor([2.0, 3.0])).eval()
    features = torch.randn(2, 2, 3, 3)
    exported = torch.export.export(module, (features,)).module()
    torch.testing.assert_close(exported(features), module(features))
    assert not torch.equal(module(features), features)


def test_the_type_of_half_precision_features_stays() -> None:
    features = torch.randn(2, 2, 4, 4)
    module = filled(2, torch.tensor([0.5, -1.0]), torch.tensor([2.0, 3.0]))
    result = module(features.half())
    assert result.dtype == torch.float16
    torch.testing.assert_close(result.float(), module(features), atol=1e-2, rtol=1e-2)


# ---- equations 10 and 11 ------------------------------------------------------------------------------------------


def component(channels: int = 3, dims: int = 2, **own: Any) -> tuple[Afa, Workspace]:
    made = Afa(Afa.Settings(**own), Context(Task(("a", "b"), 1, dims)))
    network = SimpleNamespace(widths={"input": 1, "bottleneck": channels}, insert=lambda *_: None, spatial_dims=dims)
    made.install(network)  # type: ignore[arg-type]
    return made, network  # type: ignore[return-value]


def a_server(names: dict[str, str], **previous: torch.Tensor) -> SimpleNamespace:
    start = {"mean": torch.zeros(3), "deviation": torch.zeros(3), "count": torch.tensor(0), **previous}
    return SimpleNamespace(weights=dict.fromkeys(names.values()), previous={names[k]: v for k, v in start.items()})


def collect(made: Afa, batches: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    made.receive(None, {})  # type: ignore[arg-type]
    for batch in batches:
        made._module.collecting = True
        made._module.train()(batch)
        made._module.train()(batch)  # a second pass of the same step is not counted
    return made.share(BARE)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.booleans(), st.sampled_from([2, 3]), st.integers(0, 999), st.sampled_from([0.0, 300.0]))
def test_the_deviation_equals_two_passes_over_pooled_features(
    sites: int, channelwise: bool, dims: int, seed: int, offset: float
) -> None:
    """Sites have batches of several sizes; the second pass knows the common mean of the first."""
    generator = torch.Generator().manual_seed(seed)
    made, _ = component(dims=dims, statistics="channel" if channelwise else "scalar")
    shared, pooled = {}, []
    for site in range(sites):
        shapes = [(2, 3, *[4] * dims), (1, 3, *[2 + site] * dims)]
        batches = [torch.randn(shape, generator=generator) * (1 + site) + offset + site for shape in shapes]
        shared[f"site{site}"] = {n: t.clone() for n, t in collect(made, batches).items()}
        values = torch.cat([b.transpose(0, 1).flatten(1) for b in batches], 1).double()
        pooled.append(values if channelwise else values.flatten()[None])
    server = a_server(made._names)
    assert made.combine(server, shared) == {}  # type: ignore[arg-type]
    mean = torch.stack([values.mean(1) for values in pooled]).mean(0)
    roots = [(values - mean[:, None]).square().mean(1).sqrt() for values in pooled]
    torch.testing.assert_close(server.weights[PREFIX + "mean"].double(), mean, rtol=1e-5, atol=1e-6)
    found = server.weights[PREFIX + "deviation"].double()
    torch.testing.assert_close(found, torch.stack(roots).mean(0), rtol=2e-4, atol=1e-6)
    assert int(server.weights[PREFIX + "count"]) == sites
    assert server.weights[PREFIX + "count"].dtype == torch.int64


def test_nothing_of_the_site_before_is_left_in_the_module() -> None:
    made, _ = component()
    collect(made, [torch.full((1, 3, 2, 2), 9.0)])
    shared = collect(made, [torch.full((1, 3, 2, 2), 1.0)])
    torch.testing.assert_close(shared["mean"], torch.ones(3))
    torch.testing.assert_close(shared["variance"], torch.zeros(3))


def test_a_round_without_answers_keeps_what_was_known() -> None:
    made, _ = component()
    server = a_server(made._names, mean=torch.ones(3), deviation=torch.full((3,), 2.0), count=torch.tensor(4))
    made.combine(server, {})  # type: ignore[arg-type]
    assert torch.equal(server.weights[PREFIX + "deviation"], torch.full((3,), 2.0))
    assert int(server.weights[PREFIX + "count"]) == 4


# ---- in a run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg+afa", "fedavg+afa+weight_perturbation"])
@pytest.mark.parametrize("dims", [2, 3])
def test_shared_moments_are_those_of_the_last_epoch_before_alignment(method: str, dims: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(method), dims)
    server.round()
    network = server.workspace.network
    passes = 2 if "perturbation" in method else 1
    seen: list[torch.Tensor] = []
    hook = network.taps["bottleneck"].afa.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].detach().clone())
    )
    (update,) = server.engine.train(Broadcast(1, server.state.weights, server.state.shared), ["north"])
    hook.remove()
    assert isinstance(update, Update)
    assert len(seen) == 6 * passes  # two epochs of three steps
    values = torch.cat([z.transpose(0, 1).flatten(1) for z in seen[3 * passes :: passes]], 1).double()
    torch.testing.assert_close(update.shared["afa"]["mean"], values.mean(1).float())
    torch.testing.assert_close(
        update.shared["afa"]["variance"], values.var(1, correction=0).float(), rtol=1e-4, atol=1e-7
    )
    first = torch.cat([z.transpose(0, 1).flatten(1) for z in seen[: 3 * passes]], 1)
    assert not torch.allclose(first.mean(1), values.mean(1).float())


@pytest.mark.parametrize("policy", ["average", "keep", "largest"])
def test_the_server_sets_the_buffers_under_any_policy_and_inference_uses_them(policy: str, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedavg+afa", policies={"buffers": policy}))
    updates = list(server.engine.train(Broadcast(0, server.state.weights), server.sites))
    server.round()
    weights = server.state.weights
    moments = [update.shared["afa"] for update in updates]
    mean = torch.stack([one["mean"] for one in moments]).mean(0)
    spread = [(one["variance"] + (one["mean"] - mean).square()).sqrt() for one in moments]
    torch.testing.assert_close(weights[PREFIX + "mean"], mean)
    torch.testing.assert_close(weights[PREFIX + "deviation"], torch.stack(spread).mean(0))
    assert int(weights[PREFIX + "count"]) == 3
    server.workspace.load(weights)
    images, _ = tiny_site("north", 3).images.batch(torch.arange(3))
    with torch.no_grad():
        deepest = server.workspace.network.eval().encode(images)[-1]
    torch.testing.assert_close(deepest.mean((2, 3)), mean.expand(3, -1), atol=1e-5, rtol=1e-4)


def test_the_first_round_is_that_of_fedavg_and_later_ones_are_not(tmp_path: Path) -> None:
    ends = {}
    for method in ("fedavg", "fedavg+afa"):
        server = tiny_server(tmp_path / method, tiny_recipe(method))
        server.round()
        first = {n: t for n, t in server.state.weights.items() if PREFIX not in n}
        server.round()
        ends[method] = first, {n: t for n, t in server.state.weights.items() if PREFIX not in n}
    (plain_first, plain_second), (first, second) = ends.values()
    assert plain_first.keys() == first.keys()
    assert all(torch.equal(plain_first[n], first[n]) for n in first)
    assert any(not torch.equal(plain_second[n], second[n]) for n in second)


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_in_training_alone_a_share_of_the_steps_is_aligned(probability: float, share: float) -> None:
    made, _ = component(when="train", probability=probability)
    module, features = made._module, torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        module.count.fill_(1)
    changed = []
    for index in range(200):
        generator = torch.Generator().manual_seed(index)
        step = Step(BARE, None, features, features, generator, 1, 0, index, False, 0.0, 0.1)  # type: ignore[arg-type]
        made.on_images(step)
        results = [module.train()(features) for _ in range(2)]
        assert torch.equal(*results)  # both passes of a step
        changed.append(not torch.equal(results[0], features))
        assert torch.equal(module.eval()(features), features)
    assert abs(sum(changed) / 200 - share) < 0.08


def test_a_method_without_exchange_never_aligns(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("local+afa"))
    server.fit()
    counts = [t for n, t in final_tensors(server).items() if n.endswith(PREFIX + "count")]
    assert counts
    assert not any(int(count) for count in counts)


def test_settings_get_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"afa\(tap=botleneck\).*bottleneck"):
        build_workspace(tiny_recipe("fedavg+afa(tap=botleneck)"), tiny_task())
    warnings = {}
    for own in ("tap=encoder1", "probability=0.3", "when=train,probability=0.3"):
        workspace = build_workspace(tiny_recipe(f"fedavg+afa({own})"), tiny_task())
        warnings[own] = [w for c in workspace.components for w in c.warnings()]
    assert [len(found) for found in warnings.values()] == [0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "norm", "said"),
    [
        ("", "instance", True),
        ("(statistics=scalar,when=train)", "instance", True),
        ("(tap=input)", "instance", False),  # no norm was there before it
        ("", "group", False),
        ("", "batch", False),
    ],
)
def test_a_norm_that_has_aligned_the_features_is_said(settings: str, norm: str, said: bool) -> None:
    workspace = build_workspace(tiny_recipe(f"fedavg+afa{settings}", network={"norm": norm}), tiny_task())
    assert any(warning.startswith("afa: expect no gain") for warning in workspace.warnings()) == said


@pytest.mark.parametrize(("statistics", "numbers"), [("channel", 8), ("scalar", 1)])
def test_the_declared_shapes_follow_the_statistics(statistics: str, numbers: int) -> None:
    workspace = build_workspace(tiny_recipe(f"fedavg+afa(statistics={statistics})"), tiny_task())
    assert {one.name: one.shape for one in workspace.declared()["afa"]} == {"mean": (numbers,), "variance": (numbers,)}
    assert workspace.network.state_dict()[PREFIX + "mean"].shape == (numbers,)
