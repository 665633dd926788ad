from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.aggregation.ssa import Ssa
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.stage_similarity import (
    cosine,
    pairwise_products,
    products,
    stage_names,
    stage_outputs,
    stage_weights,
)
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.networks import build_network
from polyclinic.networks.base import load_weights
from polyclinic.recipe import NetworkSettings
from support import Keeper, assert_same, tiny_recipe, tiny_server, tiny_site, tiny_task

Tensors = dict[str, torch.Tensor]
STATISTICS = {
    "north": {"mean": torch.tensor([0.5, 0.4]), "deviation": torch.tensor([0.2, 0.3])},
    "south": {"mean": torch.tensor([0.1, 0.9]), "deviation": torch.tensor([0.4, 0.1])},
    "west": {"mean": torch.tensor([-0.6, 0.2]), "deviation": torch.tensor([0.1, 0.6])},
    "east": {"mean": torch.tensor([0.3, 0.3]), "deviation": torch.tensor([0.3, 0.0])},
}


# ---- the weights of equation 13 -----------------------------------------------------------------------------------


def aggregated(models: np.ndarray, c: np.ndarray, reading: str, base: np.ndarray) -> float:
    """One stage of equation 13 written out; a model is one number."""
    count = len(models)
    everything = sum(c[a, b] for a in range(count) for b in range(count) if a != b)
    result = sum(base[m] * models[m] for m in range(count)) / 2
    for m in range(count):
        row = sum(c[m, k] for k in range(count) if k != m)
        for j in range(count):
            if j == m:
                continue
            if reading == "row":
                s = (c[m, j] / row if row > 0 else 1 / (count - 1)) / count
            else:
                s = c[m, j] / everything if everything > 0 else 1 / (count * (count - 1))
            result += s * models[j] / 2
    return float(result)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 6), st.integers(1, 4), st.sampled_from(["row", "global"]), st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_weights_are_those_of_the_equation_and_sum_to_one(
    sites: int, stages: int, reading: Any, zeros: float, uniform: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    c = rng.random((stages, sites, sites)) * (rng.random((stages, sites, sites)) >= zeros)
    base = np.full(sites, 1 / sites) if uniform else rng.dirichlet(np.ones(sites))
    found = stage_weights(torch.from_numpy(c), torch.from_numpy(base), reading)
    torch.testing.assert_close(found.sum(1), torch.ones(stages, dtype=torch.float64))
    models = rng.normal(size=sites)
    for stage in range(stages):
        assert float(found[stage].numpy() @ models) == pytest.approx(aggregated(models, c[stage], reading, base))
    if uniform:
        assert float(found.min()) >= 1 / (2 * sites) - 1e-12
        symmetric = stage_weights(torch.from_numpy(c + c.swapaxes(1, 2)), torch.from_numpy(base), reading)
        assert float(symmetric.max()) <= (0.5 if reading == "row" else 0.25 + 0.5 / sites) + 1e-12


@pytest.mark.parametrize("reading", ["row", "global"])
def test_one_site_two_sites_and_equal_similarities(reading: Any) -> None:
    base = torch.full((4,), 0.25, dtype=torch.float64)
    same = torch.full((3, 4, 4), 0.7, dtype=torch.float64)
    torch.testing.assert_close(stage_weights(same, base, reading), base.expand(3, 4))
    two = torch.tensor([[[9.0, 0.3], [0.3, 9.0]]], dtype=torch.float64)
    torch.testing.assert_close(stage_weights(two, base[:2] * 2, reading), two.new_full((1, 2), 0.5))
    one = stage_weights(torch.zeros(3, 1, 1, dtype=torch.float64), base[:1] * 4, reading)
    assert torch.equal(one, torch.ones(3, 1, dtype=torch.float64))


# ---- similarities -------------------------------------------------------------------------------------------------


def outputs_of(seed: int, probes: int = 3) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {s: torch.randn(probes, n, generator=generator) + 0.5 for s, n in (("a", 7), ("b", 40))}


@pytest.mark.parametrize("how", ["flat", "sample"])
def test_cosines_are_those_of_the_flattened_outputs(how: Any) -> None:
    first, second = outputs_of(0), outputs_of(1)
    found = cosine(products(first, second), products(first, first), products(second, second), how)
    for value, (a, b) in zip(found, [(first[s].numpy(), second[s].numpy()) for s in ("a", "b")], strict=True):
        pairs = [(a.ravel(), b.ravel())] if how == "flat" else list(zip(a, b, strict=True))
        wanted = np.mean([x @ y / (np.linalg.norm(x) * np.linalg.norm(y)) for x, y in pairs])
        assert float(value) == pytest.approx(max(0.0, float(wanted)), abs=1e-6)


def test_opposite_dead_and_overflowing_outputs_are_alike_to_nothing() -> None:
    for other in (-1.0, 0.0, 1e30):
        first, second = {"a": torch.ones(2, 4)}, {"a": torch.full((2, 4), other)}
        value = cosine(products(first, second), products(first, first), products(second, second), "flat")
        assert value.tolist() == [0.0], other


@pytest.mark.parametrize(("room", "runs"), [(10**6, 5), (2 * 3 * 47 * 4, 5 + 3 + 1), (1, 5 + 4 + 3 + 2 + 1)])
def test_a_bound_on_the_memory_costs_runs_and_changes_nothing(room: int, runs: int) -> None:
    asked: list[int] = []

    def outputs(number: int) -> Tensors:
        asked.append(number)
        return outputs_of(number)

    found = pairwise_products(outputs, 5, room)
    assert len(asked) == runs
    assert found.keys() == {(m, j) for j in range(5) for m in range(j + 1)}
    for (m, j), value in found.items():
        assert torch.equal(value, products(outputs_of(m), outputs_of(j)))


NETWORKS: list[dict[str, Any]] = [
    {"width": 2, "depth": 2, "norm": "batch"},
    {"width": 4, "depth": 3, "norm": "group", "upsample": "linear"},
    {"width": 2, "depth": 1, "norm": "batch-nostats", "bias": False},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n["norm"])
@pytest.mark.parametrize("dims", [2, 3])
def test_outputs_are_those_at_the_moment_the_stage_ends(network: dict[str, Any], dims: int) -> None:
    """A later stage that works in place must not change what an earlier one has given."""
    net = build_network(tiny_task(dims), NetworkSettings(**network), 0)
    stages = stage_names(net)
    names = [n for members in net.stages().values() for n in members]
    assert sorted(names) == sorted(net.state_dict())
    assert stages == list(net.stages())
    ends = [*net.encoder, *net.decoder, net.classifier]
    seen: list[torch.Tensor] = []
    for module in ends:
        module.register_forward_hook(lambda _, __, result: seen.append(result.detach().clone()))
    net.train()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    found = stage_outputs(net, torch.randn(3, 2, *[2 * net.multiple] * dims), stages)
    assert len(seen) == 3 * len(stages)  # one pass a probe
    for number, values in enumerate(found.values()):
        assert torch.equal(values, torch.cat(seen[number :: len(stages)]).flatten(1))
        assert not values.requires_grad
    assert net.training
    assert_same(before, dict(net.state_dict()))


def test_stages_that_do_not_cover_the_network_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_network(tiny_task(), NetworkSettings(width=2, depth=1), 0)
    stages = net.stages()
    for wrong in (
        {**stages, "head": []},
        {**stages, "head": stages["head"] * 2},
        {**{s: n for s, n in stages.items() if s != "head"}, "tail": stages["head"]},
    ):
        monkeypatch.setattr(net, "stages", lambda wrong=wrong: wrong)
        with pytest.raises(ValueError, match=r"exactly once|no outlet"):
            stage_names(net)


def test_a_stage_that_is_frozen_needs_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_network(tiny_task(), NetworkSettings(width=2, depth=1), 0)
    monkeypatch.setattr(net, "frozen", lambda: set(net.stages()["encoder0"]))
    assert stage_names(net) == ["bottleneck", "decoder0", "head"]


# ---- the component ------------------------------------------------------------------------------------------------


def ssa_of(workspace: Workspace) -> Ssa:
    return next(c for c in workspace.fresh_components({}) if isinstance(c, Ssa))


def a_server(workspace: Workspace, number: int = 0) -> ServerRound:
    previous = {n: t.clone() for n, t in workspace.exchanged_weights().items()}
    buffers = frozenset(workspace.network.buffer_names())
    policy = workspace.recipe.policies.buffers
    generator = torch.Generator().manual_seed(5)
    return ServerRound(number, 3, workspace.network, previous, (), buffers, policy, generator, workspace.device)


def updates_of(workspace: Workspace, sites: Sequence[str], spread: float = 0.4, **own: dict[str, int]) -> list[Update]:
    """Models at a distance of ``spread`` from the workspace's, each with its own running statistics."""
    found = []
    start = workspace.exchanged_weights()
    for number, site in enumerate(sites):
        generator = torch.Generator().manual_seed(number)
        weights = {}
        for name, tensor in start.items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator) * spread
                weights[name] = tensor + (noise.abs() if "running_var" in name else noise)
            else:
                weights[name] = tensor + 10 * number + 1
        shared = {"ssa": {n: t.clone() for n, t in STATISTICS[site].items()}}
        found.append(Update(site, 0, weights, own.get("samples", {}).get(site, 3), 4, shared))
    return found


def naive_cosines(
    workspace: Workspace, component: Ssa, updates: list[Update], compare: str, how: str
) -> list[np.ndarray]:
    """Stage by stage, from hooks on fresh networks, probe by probe."""
    made: dict[tuple[int, int], list[np.ndarray]] = {}
    for m, update in enumerate(updates):
        net = build_network(workspace.task, workspace.recipe.network, 1).eval()
        load_weights(net, update.weights)
        for j, other in enumerate(updates):
            seen: list[np.ndarray] = []
            hooks = [
                module.register_forward_hook(
                    lambda _, __, result, seen=seen: seen.append(result.detach().numpy().copy())
                )
                for module in [*net.encoder, *net.decoder, net.classifier]
            ]
            with torch.no_grad():
                for probe in component._probe(0, other.site, STATISTICS[other.site]):
                    net(probe[None])
            stages = len(hooks)
            made[m, j] = [np.concatenate(seen[stage::stages]) for stage in range(stages)]
            for hook in hooks:
                hook.remove()
    count, stages = len(updates), len(made[0, 0])
    found = []
    for stage in range(stages):
        c = np.zeros((count, count))
        for m in range(count):
            for j in range(count):
                left, right = made[m, m][stage], made[j, j][stage] if compare == "pathfl" else made[m, j][stage]
                pairs = [(left, right)] if how == "flat" else list(zip(left, right, strict=True))
                values = [(a * b).sum() / (np.sqrt((a * a).sum()) * np.sqrt((b * b).sum())) for a, b in pairs]
                c[m, j] = max(0.0, float(np.mean(values)))
        found.append(c)
    return found


CASES = [
    ("", 2, NETWORKS[0]), ("", 3, NETWORKS[0]), ("reading=global", 2, NETWORKS[1]), ("compare=fedsoda", 2, NETWORKS[0]),
    ("compare=fedsoda,reading=global,similarity=sample", 2, NETWORKS[0]), ("similarity=sample", 3, NETWORKS[0]),
    ("base=samples,shared_noise=false,probes=2", 2, NETWORKS[2]),
    ("base=samples,reading=global,size=5", 2, NETWORKS[0]),
]  # fmt: skip


@pytest.mark.parametrize(("own", "dims", "network"), CASES)
def test_every_stage_is_aggregated_by_the_equation(own: str, dims: int, network: dict[str, Any]) -> None:
    workspace = build_workspace(tiny_recipe(f"fedavg+ssa({own})", network=network), tiny_task(dims))
    component, samples = ssa_of(workspace), {"north": 7, "south": 2, "west": 1, "east": 5}
    updates = updates_of(workspace, list(samples), samples=samples)
    reading, compare = component.settings.reading, component.settings.compare
    cosines = naive_cosines(workspace, component, updates, compare, component.settings.similarity)
    assert max(float(c.max() - c.min()) for c in cosines) > 0.1
    result = component.aggregate(a_server(workspace), updates)
    counts = np.array(list(samples.values()))
    base = counts / counts.sum() if component.settings.base == "samples" else np.full(4, 0.25)
    assert result.keys() == workspace.exchanged
    for (stage, names), c in zip(workspace.network.stages().items(), cosines, strict=True):
        alphas = [aggregated(np.eye(4)[j], c, reading, base) for j in range(4)]
        assert sum(alphas) == pytest.approx(1)
        for name in names:
            if not result[name].is_floating_point():
                assert int(result[name]) == int(updates[0].weights[name])  # the site with most samples
                continue
            wanted = sum(a * u.weights[name].double() for a, u in zip(alphas, updates, strict=True))
            torch.testing.assert_close(result[name], wanted.float(), rtol=1e-4, atol=1e-6, msg=f"{stage} {name}")


SMALL: dict[str, dict[str, Any]] = {
    "unet": NETWORKS[0],
    "vit": {"width": 2, "patch": 4, "embedding": 12, "layers": 3, "heads": 3, "mlp": 10, "norm": "batch"},
    "pretrained": {"width": 2, "model": "resnet10t", "weights": "random", "norm": "batch"},
}


@pytest.mark.parametrize(("network", "dims"), [("unet", 2), ("unet", 3), ("vit", 2), ("vit", 3), ("pretrained", 2)])
def test_weights_sum_to_one_for_every_stage_network_and_number_of_sites(network: str, dims: int) -> None:
    recipe = tiny_recipe("pathfl", network={"name": network, **SMALL[network]})
    workspace = build_workspace(recipe, tiny_task(dims))
    component, stages = ssa_of(workspace), stage_names(workspace.network)
    for sites in range(1, 5):
        updates = updates_of(workspace, list(STATISTICS)[:sites], spread=0.2)
        similarity = component._similarity(a_server(workspace), updates, stages)
        found = stage_weights(similarity, torch.full((sites,), 1 / sites, dtype=torch.float64), "row")
        torch.testing.assert_close(found.sum(1), torch.ones(len(stages), dtype=torch.float64))
        if sites > 2:
            assert (found.amax(1) - found.amin(1) > 1e-4).all()
        assert component.aggregate(a_server(workspace), updates).keys() == workspace.exchanged


def test_stages_have_weights_of_their_own() -> None:
    workspace = build_workspace(tiny_recipe("fedavg+ssa"), tiny_task())
    component, updates = ssa_of(workspace), updates_of(workspace, ["north", "south", "west"])
    similarity = component._similarity(a_server(workspace), updates, stage_names(workspace.network))
    found = stage_weights(similarity, torch.full((3,), 1 / 3, dtype=torch.float64), "row")
    assert found.shape == (len(workspace.network.stages()), 3)
    assert len({tuple(row) for row in found.round(decimals=4).tolist()}) == len(found)


@pytest.mark.parametrize("own", ["", "reading=global", "compare=fedsoda", "similarity=sample"])
@pytest.mark.parametrize("sites", [1, 2, 3, 4])
def test_equal_models_get_equal_weights_and_give_that_model(own: str, sites: int) -> None:
    workspace = build_workspace(tiny_recipe(f"fedavg+ssa({own})"), tiny_task())
    component, names = ssa_of(workspace), list(STATISTICS)[:sites]
    updates = updates_of(workspace, names, spread=0.0)
    different = component.aggregate(a_server(workspace), updates)
    for name, tensor in different.items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, updates[0].weights[name])
    for update in updates:
        update.shared["ssa"] = STATISTICS["north"]
    similarity = component._similarity(a_server(workspace), updates, stage_names(workspace.network))
    found = stage_weights(similarity, torch.full((sites,), 1 / sites, dtype=torch.float64), component.settings.reading)
    torch.testing.assert_close(found, torch.full_like(found, 1 / sites))


@pytest.mark.parametrize("policy", ["average", "largest"])
def test_buffers_follow_the_policy_and_integers_the_largest_site(policy: str) -> None:
    workspace = build_workspace(tiny_recipe("fedavg+ssa", policies={"buffers": policy}), tiny_task())
    updates = updates_of(workspace, ["north", "south", "west"], samples={"north": 1, "south": 9, "west": 9})
    result = ssa_of(workspace).aggregate(a_server(workspace), updates)
    name = next(n for n in result if n.endswith("running_mean"))
    assert torch.equal(result[name], updates[1].weights[name]) == (policy == "largest")
    tracked = name.replace("running_mean", "num_batches_tracked")
    assert torch.equal(result[tracked], updates[1].weights[tracked])
    assert result[tracked].dtype == torch.int64


def test_sites_without_samples_count_evenly() -> None:
    workspace = build_workspace(tiny_recipe("fedavg+ssa(base=samples)"), tiny_task())
    updates = updates_of(workspace, ["north", "south"], samples={"north": 0, "south": 0})
    result = ssa_of(workspace).aggregate(a_server(workspace), updates)
    for name, tensor in result.items():
        if tensor.is_floating_point():
            mean = (updates[0].weights[name].double() + updates[1].weights[name].double()) / 2
            torch.testing.assert_close(tensor, mean.float())


# ---- probes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
def test_probes_come_from_the_seed_the_round_and_the_sites_statistics(dims: int) -> None:
    made = {}
    for seed in (0, 1):
        recipe = tiny_recipe("fedavg+ssa(size=9,probes=3)").model_copy(update={"seed": seed})
        component = ssa_of(build_workspace(recipe, tiny_task(dims)))
        made |= {(seed, r): component._probe(r, "north", STATISTICS["north"]) for r in (0, 1)}
    assert made[0, 0].shape == (3, 2, *[12] * dims)  # rounded up to the network's multiple
    assert not torch.equal(made[0, 0], made[1, 0])
    again = ssa_of(build_workspace(tiny_recipe("fedavg+ssa(size=9,probes=3)"), tiny_task(dims)))
    assert torch.equal(made[0, 0], again._probe(0, "north", STATISTICS["north"]))
    assert not torch.equal(made[0, 0], made[0, 1])
    values = made[0, 0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(values.mean(1), STATISTICS["north"]["mean"], atol=0.06, rtol=0)
    torch.testing.assert_close(values.std(1), STATISTICS["north"]["deviation"], atol=0.06, rtol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_noise_is_shared_or_each_sites_own(shared: bool) -> None:
    component = ssa_of(build_workspace(tiny_recipe(f"fedavg+ssa(shared_noise={str(shared).lower()})"), tiny_task()))
    noise = []
    for site in ("north", "south"):
        mean, deviation = (STATISTICS[site][n].view(2, 1, 1) for n in ("mean", "deviation"))
        noise.append((component._probe(4, site, STATISTICS[site]) - mean) / deviation)
    assert torch.allclose(*noise, atol=1e-4) == shared


@pytest.mark.parametrize(
    ("data", "own", "size"),
    [
        ({"size": (30, 17)}, "", (32, 20)), ({"size": (64, 64), "patch": (13, 8)}, "", (16, 8)), ({}, "", (8, 8)),
        ({"size": (30, 17)}, "size=21", (24, 24)), ({"size": (30, 17)}, "where=sites", (8, 8)),
        ({"size": (30, 17)}, "where=sites,size=10", (12, 12)),
    ],
)  # fmt: skip
def test_probes_have_the_size_of_the_images_or_the_one_that_is_set(
    data: dict[str, Any], own: str, size: tuple[int, ...]
) -> None:
    workspace = build_workspace(tiny_recipe(f"fedavg+ssa({own})", data=data), tiny_task())
    assert ssa_of(workspace)._probe(0, "north", STATISTICS["north"]).shape == (4, 2, *size)


def test_statistics_are_those_of_the_whole_training_set_and_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe("fedavg+ssa"), tiny_task())
    data, walks = tiny_site("north", 5), []
    whole = SiteRound.batches

    def batches(self: SiteRound, labelled: bool | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
        walks.append(labelled)
        yield from whole(self, labelled)

    monkeypatch.setattr(SiteRound, "batches", batches)
    state: Tensors = {}
    for number in range(2):
        component = ssa_of(workspace)
        component.state = state
        site = SiteRound("north", number, workspace.network, {}, data, workspace.device, torch.Generator(), 2)
        shared, state = component.share(site), component.state
        images, _ = data.images.batch(torch.arange(5))
        values = images.transpose(0, 1).flatten(1).double()
        torch.testing.assert_close(shared["mean"], values.mean(1).float())
        torch.testing.assert_close(shared["deviation"], values.std(1, correction=0).float())
    assert walks == [None]


# ---- in a run -----------------------------------------------------------------------------------------------------


class Absent(InProcess):
    """The site ``south`` fails in the second round."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            gone = broadcast.round == 1 and answer.site == "south"
            yield Failure("south", 1, "gone") if gone else answer


def test_the_sites_can_run_the_probes_with_the_same_result(tmp_path: Path) -> None:
    """The same probes at either place; what leaves is then outputs, as large as declared, and no statistics."""
    ends, shared = {}, {}
    for where in ("server", "sites"):
        recipe = tiny_recipe(f"pathfl(where={where})", training={"rounds": 2})
        server = tiny_server(tmp_path / where, recipe, observer=(keeper := Keeper()))
        server.fit()
        assert not keeper.refusals
        ends[where], shared[where] = server.state.weights, server.workspace.declared()["ssa"]
        counted = [event["shared_up"]["ssa"]["north"]["bytes"] for event in keeper.events]
        assert counted == [4 * sum(int(np.prod(one.shape)) for one in shared[where])] * 2
    assert_same(ends["server"], ends["sites"])
    assert {one.name: one.shape for one in shared["server"]} == {"mean": (2,), "deviation": (2,)}
    # 8 x 8 probes, width 2, depth 2: full size, halved, quartered, and back; three classes.
    assert {one.name: one.shape for one in shared["sites"]} == {
        "encoder0": (4, 128), "encoder1": (4, 64), "bottleneck": (4, 32), "decoder1": (4, 64), "decoder0": (4, 128),
        "head": (4, 192),
    }  # fmt: skip


def test_a_site_that_is_missing_takes_no_part_in_the_weights_and_keeps_its_style(tmp_path: Path) -> None:
    recipe = tiny_recipe("pathfl", training={"rounds": 2, "quorum": 2})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()), engine=Absent)
    server.round()
    style = server.state.shared["cse"]
    updates = [
        update
        for update in InProcess(server.workspace, server.engine.sites).train(  # type: ignore[attr-defined]
            Broadcast(1, server.state.weights, server.state.shared), ["north", "west"]
        )
        if isinstance(update, Update)
    ]
    server.round()
    assert [site for _, site, _ in keeper.refusals] == ["south"]
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point() and "afa" not in name:  # of two sites each has one half
            mean = (updates[0].weights[name].double() + updates[1].weights[name].double()) / 2
            torch.testing.assert_close(tensor, mean.float(), rtol=1e-5, atol=1e-7)
    assert torch.equal(server.state.shared["cse"]["owners"], style["owners"])


@pytest.mark.parametrize(
    ("method", "policy", "kept"),
    [("fedbn+ssa", "average", True), ("fedavg+ssa", "keep", True), ("pathfl", "average", False)],
)
def test_weights_that_stay_at_the_sites_do_not_leak_into_the_comparison(method: str, policy: str, kept: bool) -> None:
    workspace = build_workspace(tiny_recipe(method, policies={"buffers": policy}), tiny_task())
    results, warnings = [], []
    updates = updates_of(workspace, ["north", "south", "west"])
    for user in range(2):
        with torch.no_grad():
            for tensor in workspace.network.state_dict().values():
                tensor.copy_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(user)) * 3)
        component = ssa_of(workspace)
        for number, sites in ((0, 3), (1, 1), (2, 3)):
            server = a_server(workspace, number)
            server.warn = warnings.append
            results.append(component.aggregate(server, updates[-sites:]))
    for first, second in zip(results[:3], results[3:], strict=True):
        assert_same(first, second)
    assert len(warnings) == 2 * kept  # once a run
    assert all("where=sites" in warning for warning in warnings)


def test_what_cannot_be_compared_gets_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"where=sites, compare=fedsoda.*where=server"):
        build_workspace(tiny_recipe("fedavg+ssa(where=sites,compare=fedsoda)"), tiny_task())


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("pathfl-cse-afa-ssa", ["weighted_mean"]),
        ("pathfl-afa-ssa", ["weighted_mean", "cse"]),
        ("pathfl-cse-ssa", ["weighted_mean", "afa"]),
        ("pathfl-cse-afa", ["ssa"]),
        ("pathfl-ssa", ["weighted_mean", "cse", "afa"]),
        ("pathfl-afa", ["ssa", "cse"]),
        ("pathfl-cse", ["ssa", "afa"]),
        ("pathfl", ["ssa", "cse", "afa"]),
    ],
)
def test_the_rows_of_table_7_are_expressions(row: str, parts: list[str]) -> None:
    assert [part.component for part in parse_method(row).parts] == parts
