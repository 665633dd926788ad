"""FedContrast-GPA's process-aware mean against numbers worked out by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.aggregation.process_aware_mean import ProcessAwareMean
from polyclinic.components.aggregation.weighted_mean import WeightedMean
from polyclinic.components.base import Component, ComponentSettings, Context
from polyclinic.data.federation import Task
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_site

TWO = {"rounds": 2}


BUFFERS = frozenset({"mean", "count"})


def aggregator(cls: type[Component]) -> Component:
    return cls(cls.Settings(), Context(Task(("a", "b"), 1, 2)))


def update(site: str, samples: int, steps: int, planned: int, value: float, seed: int = 0) -> Update:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "weight": torch.full((2,), value) + (torch.randn(2, generator=generator) if seed else 0),
        "mean": torch.full((1,), value),
        "count": torch.tensor(int(value)),
    }
    return Update(site, 0, weights, samples, steps, {"process_aware_mean": {"planned": torch.tensor(planned)}})


def server_round(policy: str = "average") -> Any:
    previous = {"weight": torch.full((2,), -1.0), "mean": torch.full((1,), -1.0), "count": torch.tensor(-1)}
    return SimpleNamespace(buffers=BUFFERS, buffer_policy=policy, previous=previous)


def test_a_straggler_counts_for_the_part_it_completed() -> None:
    """By hand: 10 * 1 = 10 and 30 * 4 / 8 = 15, a site without a step 0, so (10 * 1 + 15 * 6) / 25 = 4."""
    sites = [update("a", 10, 5, 5, 1.0), update("b", 30, 4, 8, 6.0), update("c", 50, 0, 12, 100.0)]
    result = aggregator(ProcessAwareMean).aggregate(server_round(), iter(sites))
    assert_same(result, {"weight": torch.full((2,), 4.0), "mean": torch.full((1,), 4.0), "count": torch.tensor(6)})
    largest = aggregator(ProcessAwareMean).aggregate(server_round("largest"), iter(sites))
    assert float(largest["mean"]) == 6


def test_uniform_weighting_leaves_the_completed_part_alone() -> None:
    """By hand: 1 and 4 / 8, so (1 * 1 + 0.5 * 7) / 1.5 = 3."""
    component = aggregator(ProcessAwareMean)
    component.settings = ProcessAwareMean.Settings(weighting="uniform")
    sites = [update("a", 10, 5, 5, 1.0), update("b", 30, 4, 8, 7.0)]
    assert component.aggregate(server_round(), iter(sites))["weight"].tolist() == [3.0, 3.0]


def test_more_steps_than_planned_count_once() -> None:
    sites = [update("a", 10, 500, 5, 1.0), update("b", 10, 5, 5, 3.0)]
    assert aggregator(ProcessAwareMean).aggregate(server_round(), iter(sites))["weight"].tolist() == [2.0, 2.0]


def test_if_no_site_did_anything_the_weights_stay() -> None:
    sites = [update("a", 10, 0, 5, 1.0), update("b", 10, 3, 0, 3.0)]
    server = server_round()
    assert_same(aggregator(ProcessAwareMean).aggregate(server, iter(sites)), server.previous)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 90)), min_size=1, max_size=6),
    st.sampled_from(["average", "largest"]),
    st.integers(1, 999),
)
def test_it_is_the_weighted_mean_bit_for_bit_when_all_steps_are_done(
    sites: list[tuple[int, int]], policy: str, seed: int
) -> None:
    updates = [update(str(i), n, steps, steps, 0.1 * i, seed + i) for i, (n, steps) in enumerate(sites)]
    results = [aggregator(c).aggregate(server_round(policy), iter(updates)) for c in (ProcessAwareMean, WeightedMean)]
    assert_same(*results)


def test_a_run_without_stragglers_is_fedavg(tmp_path: Path) -> None:
    aware = tiny_server(tmp_path / "aware", tiny_recipe("fedavg+process_aware_mean", training=TWO))
    plain = tiny_server(tmp_path / "plain", tiny_recipe("fedavg", training=TWO))
    assert aware.aggregator.name == "process_aware_mean"
    aware.fit()
    plain.fit()
    assert_same(final_tensors(aware), final_tensors(plain))


class Slow(InProcess):
    """The site ``south`` reports half of its steps."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            if isinstance(answer, Update) and answer.site == "south":
                answer.steps //= 2
            yield answer


def test_a_run_with_a_straggler_is_the_formula(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedavg+process_aware_mean"), engine=Slow)
    updates = list(server.engine.train(Broadcast(0, server.state.weights), server.sites))
    shares = {"north": 5.0, "south": 1.5, "west": 1.0}
    server.round()
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point():
            naive = sum(shares[u.site] * u.weights[name].double() for u in updates) / 7.5
            torch.testing.assert_close(tensor, naive.float(), rtol=1e-6, atol=1e-8)


class WantsUnlabelled(Component):
    name = "wants_unlabelled"
    level = "objective"
    wants_unlabelled = True


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("labelled", [1, 3, 7])
def test_planned_steps_are_those_of_a_whole_round(labelled: int, mixed: bool, tmp_path: Path) -> None:
    recipe = tiny_recipe("fedavg+process_aware_mean")
    server = tiny_server(tmp_path, recipe, sizes={"north": 7})
    site = server.engine.sites["north"]  # type: ignore[attr-defined]
    site.data = copy.deepcopy(tiny_site("north", 7))
    site.data.images.labelled[labelled:] = False
    if mixed:
        server.workspace.components.append(WantsUnlabelled(ComponentSettings(), server.workspace.components[0].context))
    (answer,) = server.engine.train(Broadcast(0, server.state.weights), ["north"])
    assert isinstance(answer, Update)
    expected = 2 * (7 // 4 + 1) if mixed and labelled < 7 else 2 * math.ceil(labelled / 2)
    assert answer.steps == int(answer.shared["process_aware_mean"]["planned"]) == expected
