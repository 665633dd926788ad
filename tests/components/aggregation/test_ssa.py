from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyclinic.components.aggregation.ssa import Ssa
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.stage_similarity import (
    stage_names,
    stage_weights,
)
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.networks import build_network
from polyclinic.networks.base import load_weights
from stages import NETWORKS, stage_by_equation_13
from support import Keeper, assert_same, tiny_recipe, tiny_server, tiny_site, tiny_task

Tensors = dict[str, torch.Tensor]
STATISTICS = {
    "north": {"mean": torch.tensor([0.5, 0.4]), "deviation": torch.tensor([0.2, 0.3])},
    "south": {"mean": torch.tensor([0.1, 0.9]), "deviation": torch.tensor([0.4, 0.1])},
    "west": {"mean": torch.tensor([-0.6, 0.2]), "deviation": torch.tensor([0.1, 0.6])},
    "east": {"mean": torch.tensor([0.3, 0.3]), "deviation": torch.tensor([0.3, 0.0])},
}


# ---- the weights of equation 13 -----------------------------------------------------------------------------------


# ---- similarities -------------------------------------------------------------------------------------------------


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
        alphas = [stage_by_equation_13(np.eye(4)[j], c, reading, base) for j in range(4)]
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
