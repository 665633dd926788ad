from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mixed_sites import MIXED, mixed_server
from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Update
from polyclinic.federation.workspace import build_workspace
from support import Interrupted, Keeper, Keeping, Killer, assert_same, final_tensors, tiny_recipe, tiny_task

Models = dict[str, Tensor]

# ---- consensus -------------------------------------------------------------------------------------------------------

BUFFERS = frozenset({"running_mean", "num_batches_tracked"})


def models(count: int, seed: int) -> list[Models]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "weight": torch.randn(3, 2, generator=generator),
            "bias": torch.randn(3, generator=generator),
            "running_mean": 100 * torch.randn(2, generator=generator),
            "num_batches_tracked": torch.tensor(10 * m + 1),
        }
        for m in range(count)
    ]


def aggregated(
    weights: list[Models], samples: list[int], seed: int = 0, policy: str = "average", **changes: Any
) -> Models:
    workspace = build_workspace(tiny_recipe("fedavg+consensus"), tiny_task())
    (component,) = workspace.components
    assert isinstance(component, Component)
    component.settings = type(component).Settings(**changes)
    updates = [Update(f"s{i}", 0, w, n, 1) for i, (w, n) in enumerate(zip(weights, samples, strict=True))]
    sites, generator = tuple(u.site for u in updates), torch.Generator().manual_seed(seed)
    previous = {n: torch.zeros_like(t) for n, t in weights[0].items()}
    return component.aggregate(
        ServerRound(0, 1, workspace.network, previous, sites, BUFFERS, policy, generator, torch.device("cpu")), updates
    )


def naive(weights: list[Models], samples: list[int], seed: int, groups: int, size: int, beta: float) -> Models:
    """Equations 1 to 3 as they are printed, group by group."""
    generator = torch.Generator().manual_seed(seed)
    results: list[Models] = []
    for _ in range(groups):
        members = torch.randperm(len(weights), generator=generator)[:size].tolist()
        assert len(set(members)) == len(members) == min(size, len(weights))
        total = sum(samples[m] for m in members)
        floats = ("weight", "bias", "running_mean")
        middle = {n: sum(samples[m] / total * weights[m][n].double() for m in members) for n in floats}
        trust = []
        for m in members:
            distance = sum(
                float((weights[m][n].double() - middle[n]).square().sum()) ** 0.5 for n in ("weight", "bias")
            )
            trust.append(samples[m] / total * math.exp(-beta * distance / samples[m]))
        results.append(
            {
                n: sum(a / sum(trust) * weights[m][n].double() for a, m in zip(trust, members, strict=True))
                for n in floats
            }
        )
    return {n: sum(one[n] for one in results).float() / groups for n in results[0]}  # type: ignore[union-attr]


@settings(deadline=None, max_examples=40)
@given(
    samples=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    groups=st.integers(1, 4),
    size=st.integers(1, 7),
    beta=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_groups_and_trust_are_the_printed_ones(
    samples: list[int], groups: int, size: int, beta: float, seed: int
) -> None:
    """Groups may ask for more sites than there are."""
    weights = models(len(samples), seed)
    ours = aggregated(weights, samples, seed, groups=groups, size=size, beta=beta)
    for name, wanted in naive(weights, samples, seed, groups, size, beta).items():
        torch.testing.assert_close(ours[name], wanted, rtol=1e-5, atol=1e-5)
    assert ours["num_batches_tracked"].dtype == torch.int64
    assert int(ours["num_batches_tracked"]) == 10 * samples.index(max(samples)) + 1


def test_one_site_is_that_site_bit_for_bit() -> None:
    (model,) = models(1, 0)
    assert_same(aggregated([model], [5], groups=3, size=2), model)


def test_without_beta_and_in_one_group_it_is_the_weighted_mean() -> None:
    weights, samples = models(4, 1), [3, 9, 1, 4]
    ours = aggregated(weights, samples, groups=1, size=4, beta=0)
    for name in ("weight", "running_mean"):
        mean = sum(n / 17 * w[name].double() for n, w in zip(samples, weights, strict=True))
        torch.testing.assert_close(ours[name].double(), mean, rtol=1e-6, atol=1e-6)


def test_a_far_site_loses_and_nothing_underflows() -> None:
    weights = models(3, 2)
    near = {n: t.clone() for n, t in weights[0].items()}
    far = {n: t + 1e6 if t.is_floating_point() else t for n, t in weights[1].items()}
    ours = aggregated([weights[0], near, far], [1, 1, 1], groups=1, size=3, beta=1e4)
    for name in ("weight", "bias"):
        torch.testing.assert_close(ours[name], weights[0][name])


def test_a_site_that_is_not_drawn_has_no_part_but_its_counter() -> None:
    weights, samples = models(3, 3), [1, 2, 9]
    drawn = {int(torch.randperm(3, generator=torch.Generator().manual_seed(s))[0]): s for s in range(9)}
    assert drawn.keys() == {0, 1, 2}
    ours = aggregated(weights, samples, drawn[0], groups=1, size=1)
    assert torch.equal(ours["weight"], weights[0]["weight"])
    assert torch.equal(ours["running_mean"], weights[0]["running_mean"])
    assert torch.equal(ours["num_batches_tracked"], weights[2]["num_batches_tracked"])
    ours = aggregated(weights, samples, drawn[0], "largest", groups=1, size=1)
    assert torch.equal(ours["running_mean"], weights[2]["running_mean"])


# ---- runs ------------------------------------------------------------------------------------------------------------

RECIPE = {"training": {"rounds": 3, "local_epochs": 1}, "augmentation": {"flip": 0.5}}


def test_all_kinds_of_sites_take_part_and_a_killed_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    recipe = tiny_recipe("rscfed", **RECIPE)
    keeper = Keeper()
    whole = mixed_server(tmp_path / "whole", recipe, observer=keeper, engine=Keeping)
    whole.fit()
    assert not keeper.refusals
    both = {"segmentation", "mean_teacher"}
    terms = {site: set(losses) for site, losses in keeper.events[1]["losses"].items()}
    assert terms == {"north": both, "south": both, "west": {"mean_teacher"}, "zone": {"segmentation"}}
    updates = whole.engine.updates  # type: ignore[attr-defined]
    assert {u.site: u.samples for u in updates} == {site: sum(counts) for site, counts in MIXED.items()}
    assert not any(u.shared for u in updates)
    found = final_tensors(whole)
    for site in ("north", "south", "west"):
        assert int(found[f"{site}/mean_teacher/steps"]) == sum(u.steps for u in updates if u.site == site)
    assert not any(name.startswith("zone/mean_teacher") for name in found)
    killer = Killer(lambda what, number, site: (what, number, site) == ("site", 1, "west"))
    with pytest.raises(Interrupted):
        mixed_server(tmp_path / "killed", recipe, observer=killer).fit()
    resumed = mixed_server(tmp_path / "killed", recipe)
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(found, final_tensors(resumed))
