"""Numbers that sites share, beside those of the others: honest differences pass, what breaks everybody does not."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.federation.shared_bounds import shared_deviations, shared_outliers
from support import Keeper, assert_same, fail, spoiling, tiny_recipe, tiny_server

DECLARED = {
    "style": (
        Shared("mean", ("rows", 2), "numbers"),
        Shared("variance", (1,), "their squares", at_least=0, squared=True),
        Shared("pixels", (1,), "counted", torch.int64, at_least=0),
        Shared("gap", (), "may be anything", finite=False),
    )
}


def numbers(mean: float, variance: float = 1.0, pixels: int = 1, gap: float = 0.0, rows: int = 1) -> Tensors:
    return {
        "mean": torch.tensor([[0.0, mean]]).repeat(rows, 1),
        "variance": torch.tensor([variance]),
        "pixels": torch.tensor([pixels]),
        "gap": torch.tensor(gap),
    }


def outliers(**sites: Tensors) -> dict[str, str]:
    return shared_outliers({"style": sites}, DECLARED)


@pytest.mark.parametrize("others", [1.0, 1e-9, 0.0])
def test_honest_differences_pass(others: float) -> None:
    """Raw intensities beside others, and their squares; zeros; no rows; many pixels; a gap that is not finite."""
    sites = {
        "a": numbers(others),
        "b": numbers(others, variance=others, gap=1e-12),
        "raw": numbers(-65535.0, variance=65535.0**2, pixels=10**12, gap=5.0),
        "empty": numbers(0.0, rows=0, gap=inf),
    }
    assert outliers(**sites) == {}
    assert max(shared_deviations({"style": sites}, DECLARED).values()) < 100


def test_one_that_is_a_million_times_larger_is_named_and_honest_ones_never() -> None:
    honest = {"a": numbers(0.5), "b": numbers(2.0)}
    for sites in (honest, {**honest, "c": numbers(1e-30), "d": numbers(3.0)}):
        found = outliers(**sites, evil=numbers(-1e18))
        assert found.keys() == {"evil"}
    assert outliers(**honest, evil=numbers(-1e18))["evil"] == (
        "component style shares numbers as large as 1e+18 in 'mean', where 1.25 is usual at the other sites"
    )
    assert outliers(**honest, evil=numbers(1.0, variance=1e13)).keys() == {"evil"}, "the root of it counts"
    assert outliers(**honest, evil=numbers(1.0, gap=3e38)) == {}, "alone with a gap, there is nothing to compare"
    large = {site: numbers(1e12) for site in "abc"}
    assert outliers(**large) == {}, "what all send is usual"
    assert outliers(**large, evil=numbers(1e-9)) == {}, "small numbers make nobody else stand out"


def test_of_two_sites_only_what_no_square_can_hold_is_refused_and_one_alone_never() -> None:
    assert outliers(a=numbers(1.0), b=numbers(1e8)) == {}, "nobody can say which of them is odd"
    assert outliers(a=numbers(1.0), b=numbers(1e18)).keys() == {"b"}
    assert outliers(b=numbers(1e18)) == {}
    assert shared_deviations({"style": {"b": numbers(1e18)}}, DECLARED) == {}


def far(update: Update) -> Update:
    update.shared["cse"] = {name: torch.full_like(tensor, 1e18) for name, tensor in update.shared["cse"].items()}
    return update


@pytest.mark.parametrize("method", ["fedavg+cse(probability=1)", "fedavg+cse(probability=1)+median"])
@pytest.mark.parametrize("sizes", [None, {"north": 5, "west": 3}], ids=["three sites", "two sites"])
def test_an_enormous_style_is_never_broadcast_and_the_round_is_that_of_the_others(
    method: str, sizes: dict[str, int] | None, tmp_path: Path
) -> None:
    """One update at a time, and a list of all."""
    settings: dict[str, Any] = {"training": {"rounds": 3, "lr": 1e-3}, "data": {"intensity": "z-score"}}
    recipe = tiny_recipe(method, **settings)
    keeper = Keeper()
    attacked = tiny_server(tmp_path / "a", recipe, sizes=sizes, observer=keeper, engine=spoiling("west", far))
    absent = tiny_server(tmp_path / "b", recipe, sizes=sizes, engine=spoiling("west", fail))
    for server in (attacked, absent):
        server.fit()
    assert [event["refused"].keys() for event in keeper.events[-3:]] == [{"west"}] * 3
    assert "component cse shares numbers as large as 1e+18" in keeper.refusals[0][2]
    assert_same(attacked.state.weights, absent.state.weights)
    assert_same(attacked.state.shared["cse"], absent.state.shared["cse"])


def test_without_bounds_it_is_the_users_own_choice(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedavg+cse(probability=1)", training={"max_update_ratio": "off"})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()), engine=spoiling("west", far))
    server.round()
    assert keeper.events[0]["refused"] == {}
