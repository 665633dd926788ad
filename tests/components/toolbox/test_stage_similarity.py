"""Similarities and weights of stages, against PathFL's equation 13 written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.features.afa import FeatureAlignment
from polyclinic.components.toolbox.stage_similarity import (
    cosine,
    pairwise_products,
    products,
    stage_names,
    stage_outputs,
    stage_weights,
)
from polyclinic.networks import build_network
from polyclinic.recipe import NetworkSettings
from stages import NETWORKS, stage_by_equation_13
from support import assert_same, tiny_task

Tensors = dict[str, torch.Tensor]


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
        assert float(found[stage].numpy() @ models) == pytest.approx(
            stage_by_equation_13(models, c[stage], reading, base)
        )
    if uniform:
        assert float(found.min()) >= 1 / (2 * sites) - 1e-12
        symmetric = stage_weights(torch.from_numpy(c + c.swapaxes(1, 2)), torch.from_numpy(base), reading)
        assert float(symmetric.max()) <= (0.5 if reading == "row" else 0.25 + 0.5 / sites) + 1e-12


def test_a_stage_is_read_before_what_makes_all_sites_alike_and_later_ones_after_it() -> None:
    network = build_network(tiny_task(), NetworkSettings(width=2, depth=2), seed=0)
    probes, stages = torch.rand(3, 2, 16, 16), stage_names(network)
    plain = stage_outputs(network, probes, stages)
    alignment = FeatureAlignment(network.widths["bottleneck"])
    network.insert("bottleneck", "afa", alignment)
    alignment.mean.fill_(5.0)
    alignment.deviation.fill_(2.0)
    alignment.count.fill_(3)
    aligned = stage_outputs(network, probes, stages)
    before = [stage for stage in stages if torch.equal(plain[stage], aligned[stage])]
    assert before == [stage for stage in stages if stage.startswith("encoder")] + ["bottleneck"]
    assert not torch.allclose(plain["head"], aligned["head"])


@pytest.mark.parametrize("reading", ["row", "global"])
def test_one_site_two_sites_and_equal_similarities(reading: Any) -> None:
    base = torch.full((4,), 0.25, dtype=torch.float64)
    same = torch.full((3, 4, 4), 0.7, dtype=torch.float64)
    torch.testing.assert_close(stage_weights(same, base, reading), base.expand(3, 4))
    two = torch.tensor([[[9.0, 0.3], [0.3, 9.0]]], dtype=torch.float64)
    torch.testing.assert_close(stage_weights(two, base[:2] * 2, reading), two.new_full((1, 2), 0.5))
    one = stage_weights(torch.zeros(3, 1, 1, dtype=torch.float64), base[:1] * 4, reading)
    assert torch.equal(one, torch.ones(3, 1, dtype=torch.float64))


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
    found = stage_outputs(net, torch.randn(3, 2, *(2 * step for step in net.multiples)), stages)
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
