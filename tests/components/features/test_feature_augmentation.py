from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.components.features.statistics_augmentation import StatisticsAugmentation
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from support import (
    Interrupted,
    Keeper,
    Keeping,
    Killer,
    assert_same,
    final_tensors,
    tiny_recipe,
    tiny_server,
    tiny_task,
)

STATISTICS = ("mean", "deviation")


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.5


# ---- the running statistics and the draws of a step -------------------------------------------------------------


def layers_of(workspace: Workspace) -> list[StatisticsAugmentation]:
    return [m for m in workspace.network.modules() if isinstance(m, StatisticsAugmentation)]


def test_a_weight_perturbation_climbs_with_the_draw_of_the_first_pass(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedfa(momentum=0)+weight_perturbation(alpha=0.5)"))
    layer = layers_of(server.workspace)[0]
    passes: list[tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]] = []

    def watch(module: StatisticsAugmentation, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        if module.training:
            assert module.draws is not None
            passes.append((module.draws[len(inputs[0])], inputs[0].detach().clone(), module.mean.clone()))

    layer.register_forward_hook(watch)
    (update,) = server.engine.train(Broadcast(0, server.state.weights), ["north"])
    assert isinstance(update, Update)
    assert len(passes) == 2 * update.steps
    acted = 0
    for (noise, x, mean), (again, other, after) in zip(passes[::2], passes[1::2], strict=True):
        assert noise is again
        assert not torch.equal(x, other), "the weights were perturbed"
        assert torch.equal(mean, after)
        if noise is not None:
            acted += 1
            torch.testing.assert_close(mean, x.flatten(2).mean(2).mean(0))
    assert 0 < acted < update.steps
    noises = [noise for noise, _, _ in passes[::2] if noise is not None and len(noise[0]) == 2]
    assert len(noises) > 1
    assert not torch.equal(noises[0], noises[1])


# ---- where the layers are ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("place", ["pool", "tap"])
def test_skip_connections_carry_the_map_as_it_was_unless_asked(place: str, dims: int) -> None:
    wide = {"width": 8}
    workspace = build_workspace(tiny_recipe(f"fedfa(probability=1,place={place})", network=wide), tiny_task(dims))
    plain = build_workspace(tiny_recipe("fedavg", network=wide), tiny_task(dims))
    assert sorted(len(layer.mean) for layer in layers_of(workspace)) == [8, 16, 32]
    x = maps(3, 2, *[8] * dims, dtype=torch.float32)
    torch.manual_seed(0)
    found, wanted = (one.network.train().encode(x) for one in (workspace, plain))
    assert torch.equal(found[0], wanted[0]) == (place == "pool")
    assert not torch.allclose(found[1], wanted[1], rtol=1e-2, atol=1e-2), "the next stage sees new statistics"
    names = [name for stage in workspace.network.stages().values() for name in stage]
    assert sorted(names) == sorted(workspace.network.state_dict())
    for one in (workspace, plain):
        one.load(one.initial_exchanged)
    found, wanted = ([*one.network.eval().encode(x), one.network(x)] for one in (workspace, plain))
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs), "no change in eval mode"
        assert theirs.std() > 1e-3


def test_behind_the_pooling_the_first_layer_sees_the_pooled_map() -> None:
    workspace = build_workspace(tiny_recipe("fedfa(probability=1)"), tiny_task())
    x = maps(3, 2, 8, 8, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    for layer in layers_of(workspace):
        layer.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    pyramid = workspace.network.train().encode(x)
    torch.testing.assert_close(seen[0], torch.nn.functional.max_pool2d(pyramid[0], 2))
    torch.testing.assert_close(seen[2], torch.nn.functional.max_pool2d(pyramid[1], 2))
    assert torch.equal(seen[5], pyramid[2]), "at the bottleneck the layer comes last"


OTHERS = {
    "vit": {"name": "vit", "embedding": 12, "heads": 2, "layers": 2, "mlp": 16, "patch": 4},
    "pretrained": {"name": "pretrained", "model": "resnet18", "weights": "random", "norm": "group"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_network_without_poolings_has_its_layers_at_the_taps_and_trains(name: str, tmp_path: Path) -> None:
    recipe = tiny_recipe("fedfa(probability=1)", network=OTHERS[name], training={"rounds": 2, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    network = server.workspace.network
    wanted = {tap for tap in network.widths if tap.startswith("encoder") or tap == "bottleneck"}
    assert {tap for tap, modules in network.taps.items() if hasattr(modules, "feature_augmentation")} == wanted
    server.fit()
    assert not keeper.refusals
    variances = {n: t for n, t in server.state.weights.items() if n.endswith("_variance")}
    assert len(variances) == 2 * len(wanted)
    assert all(t.isfinite().all() and not torch.equal(t, torch.ones_like(t)) for t in variances.values())


# ---- the server -------------------------------------------------------------------------------------------------


def prefixes_of(workspace: Workspace) -> list[str]:
    """The prefix of every layer's buffers, from fine to coarse."""
    prefixes = [n for n, m in workspace.network.named_modules() if isinstance(m, StatisticsAugmentation)]
    return sorted(prefixes, key=lambda prefix: len(workspace.network.get_submodule(prefix).mean))


@pytest.mark.parametrize("variances", ["channel", "scalar"])
@pytest.mark.parametrize("policy", ["average", "keep", "largest"])
def test_the_variance_between_sites_reaches_the_layers(variances: str, policy: str, tmp_path: Path) -> None:
    method = f"fedfa(probability=1,momentum=0.5,variances={variances})"
    server = tiny_server(tmp_path, tiny_recipe(method, policies={"buffers": policy}), engine=Keeping)
    server.round()
    updates: list[Update] = server.engine.updates  # type: ignore[attr-defined]
    for place, prefix in enumerate(prefixes_of(server.workspace)):
        for key in STATISTICS:
            rows = [u.shared["feature_augmentation"][key].split([2, 4, 8])[place].tolist() for u in updates]
            values = server.state.weights[f"{prefix}.{key}_variance"]
            if variances == "channel":
                for c, column in enumerate(zip(*rows, strict=True)):
                    middle = sum(column) / 3
                    wanted = sum((value - middle) ** 2 for value in column) / 3
                    assert float(values[c]) == pytest.approx(wanted, rel=1e-4, abs=1e-9)
                assert len(set(values.tolist())) > 1
            else:
                every = [value for row in rows for value in row]
                middle = sum(every) / len(every)
                wanted = sum((value - middle) ** 2 for value in every) / (len(every) - 1)
                assert values.tolist() == pytest.approx([wanted] * len(values), rel=1e-4)
            kept = f"{prefix}.{key}" in server.workspace.kept
            assert kept == (policy == "keep")
            if policy == "average":
                mean = torch.tensor(rows).double().mean(0).float()
                torch.testing.assert_close(server.state.weights[f"{prefix}.{key}"], mean)
    variance = {n: t for n, t in server.state.weights.items() if n.endswith("_variance")}
    (second,) = server.engine.train(Broadcast(1, server.state.weights), ["north"])
    assert isinstance(second, Update)
    assert_same({n: second.weights[n] for n in variance}, variance)


def test_the_variance_is_that_of_the_sites_of_the_round(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedfa(probability=1,momentum=0)", training={"participation": 2}, seed=5)
    server = tiny_server(tmp_path, recipe, engine=Keeping)
    for number in range(3):
        server.round()
        updates: list[Update] = server.engine.updates[2 * number :]  # type: ignore[attr-defined]
        assert [u.site for u in updates] == server.choose(number)
        first, second = (u.shared["feature_augmentation"]["mean"][-8:].double() for u in updates)
        found = server.state.weights[f"{prefixes_of(server.workspace)[-1]}.mean_variance"]
        torch.testing.assert_close(found.double(), ((first - second) / 2).square(), rtol=1e-4, atol=1e-9)
    assert [server.choose(n) for n in range(3)] == [["north", "south"], ["south", "west"], ["north", "west"]]


@pytest.mark.parametrize(
    ("method", "policies"),
    [
        ("fedfa", {"buffers": "keep"}),
        ("fedfa+weight_perturbation", {}),
        ("fedfa+no_exchange", {}),
        ("fedfa+afa", {}),
        ("fedheal+feature_augmentation", {"buffers": "largest"}),
        ("pathfl+feature_augmentation", {}),
    ],
)
def test_with_others_it_trains_and_a_resumed_run_ends_the_same(
    method: str, policies: dict[str, object], tmp_path: Path
) -> None:
    recipe = tiny_recipe(method, policies=policies, training={"rounds": 2, "participation": 2}, seed=5)
    whole = tiny_server(tmp_path / "whole", recipe, observer=(keeper := Keeper()))
    whole.fit()
    assert not keeper.refusals
    killer = Killer(lambda what, number, _: what == "site" and number == 1)
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "killed", recipe, observer=killer).fit()
    resumed = tiny_server(tmp_path / "killed", recipe)
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


def test_one_site_leaves_the_variances_as_they_are_and_without_exchange_nothing_is_set(tmp_path: Path) -> None:
    alone = tiny_server(tmp_path / "alone", tiny_recipe("fedfa"), sizes={"north": 4})
    alone.fit()
    variance = [t for n, t in alone.state.weights.items() if n.endswith("_variance")]
    assert len(variance) == 6
    assert all(torch.equal(t, torch.ones_like(t)) for t in variance)
    local = tiny_server(tmp_path / "local", tiny_recipe("local+feature_augmentation"))
    local.fit()
    personal = local.engine.sites["north"].store.load(before=99).personal  # type: ignore[attr-defined]
    variance = [t for n, t in personal.items() if n.endswith("_variance")]
    assert len(variance) == 6
    assert all(torch.equal(t, torch.ones_like(t)) for t in variance)


def test_probability_zero_is_uniform_fedavg_bit_for_bit_and_the_default_is_not(tmp_path: Path) -> None:
    ends = {}
    for method in ("fedavg(weighting=uniform)", "fedfa(probability=0)", "fedfa"):
        server = tiny_server(tmp_path / method, tiny_recipe(method, training={"rounds": 2, "local_epochs": 1}))
        server.fit()
        ends[method] = final_tensors(server)
    plain, zero, default = ends.values()
    assert_same(plain, zero)
    assert any(not torch.equal(plain[name], default[name]) for name in plain)
