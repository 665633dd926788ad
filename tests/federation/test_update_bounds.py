"""Updates against the model, the other sites and the rounds before: honest ones pass, enormous ones do not."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import torch

from polyclinic.exchange.messages import Update
from polyclinic.federation.update_bounds import NormHistory, UpdateBounds, deviations, usual_norm
from support import Keeper, assert_same, fail, spoiling, tiny_recipe, tiny_server

PREVIOUS = {"w": torch.full((4,), 2.0), "zero": torch.zeros(2), "n.running_var": torch.ones(2), "n": torch.tensor(3)}
BUFFERS = frozenset({"n.running_var", "n"})


def moved(site: str, by: float, buffer: float = 0.0, number: int = 0) -> Update:
    """An update that changes the first parameter by ``by``."""
    weights = {name: tensor.clone() for name, tensor in PREVIOUS.items()}
    weights["w"][0] += by
    weights["n.running_var"][0] += buffer
    return Update(site, number, weights, 1, 1)


def bounds(ratio: float | str = 1000.0, history: NormHistory | None = None, number: int = 0) -> UpdateBounds:
    return UpdateBounds(ratio, number, PREVIOUS, BUFFERS, history or {})


def test_honest_differences_pass() -> None:
    """Sites of very different sizes, a site that learns nothing, and buffers of very different intensities."""
    judge = bounds()
    for site, by, buffer in (("a", 0.0, 0.0), ("b", 1e-9, 1e9), ("c", 3.9, 0.0), ("d", 0.5, 1e15)):
        assert judge.accept(moved(site, by, buffer)) is None
    assert judge.outliers() == {}
    assert judge.history["c"] == [[0.0, pytest.approx(3.9), 0.0]]


def test_an_update_far_above_the_others_is_refused_with_its_number_and_the_setting() -> None:
    judge = bounds()
    assert judge.accept(moved("a", 0.5)) is None
    assert judge.accept(moved("b", 0.25)) is None
    problem = judge.accept(moved("c", 1e6))
    assert problem == (
        "it changes the weights by 1e+06, 2.67e+06 times what is usual here (0.375); "
        "training.max_update_ratio allows 1000"
    )
    assert "c" not in judge.history, "it does not count for those that follow"
    assert bounds("off", judge.history).accept(moved("c", 1e6)) is None


def test_the_first_update_of_a_run_is_judged_when_the_others_are_there() -> None:
    judge = bounds()
    assert judge.accept(moved("a", 1e6)) is None
    assert judge.accept(moved("b", 0.5)) is None
    assert judge.outliers().keys() == {"a"}
    judge.forget("a")
    assert judge.history.keys() == {"b"}


def test_an_update_of_the_only_site_is_compared_with_the_model_and_then_with_itself() -> None:
    judge = bounds()
    assert judge.accept(moved("a", 1e6)) is None
    assert "times the size of the model (4)" in judge.outliers()["a"]
    later = bounds(history={"a": [[0.0, 0.5, 0.0]]}, number=1)
    assert later.accept(moved("a", 400.0, number=1)) is None
    assert bounds(history={"a": [[0.0, 0.5, 0.0]]}, number=1).accept(moved("a", 600.0, number=1)) is not None


def test_a_model_that_starts_at_zero_has_room() -> None:
    judge = UpdateBounds(1000.0, 0, {"w": torch.zeros(2)}, frozenset(), {})
    assert judge.scale == 1
    for site, value in (("a", 0.0), ("b", 0.0), ("c", 0.7)):
        assert judge.accept(Update(site, 0, {"w": torch.full((2,), value)}, 1, 1)) is None


def test_slow_growth_never_raises_the_bound_for_the_site_that_grows() -> None:
    """Below the factor everything passes, which robust aggregation is for; but the factor stays where it was."""
    history: NormHistory = {"a": [[0.0, 0.5, 0.0]], "b": [[0.0, 0.5, 0.0]]}
    for number in range(1, 30):
        judge = bounds(history=history, number=number)
        assert judge.accept(moved("a", 0.5, number=number)) is None
        assert judge.accept(moved("b", 0.5, number=number)) is None
        assert judge.accept(moved("c", min(400.0, 2.0**number), number=number)) is None
        history = judge.history
    assert max(len(entries) for entries in history.values()) == 10
    assert bounds(history=history, number=30).accept(moved("c", 600.0, number=30)) is not None


def test_what_is_usual_and_who_deviates() -> None:
    history: NormHistory = {
        "a": [[0.0, 1.0, 1.0], [1.0, 3.0, 1.0]], "b": [[1.0, 4.0, 2.0]], "c": [[1.0, 6.0, 1e9]], "d": [[0.0, 9.0, 9.0]],
    }  # fmt: skip
    assert usual_norm(history, "c", 1, 1) == 4.0, "the medians of the others are 2, 4 and 9"
    by_site = deviations(history, 1)
    assert by_site.keys() == {"a", "b", "c"}
    assert by_site["c"] == 1e9 / 2
    assert deviations({"a": [[0.0, 1.0, 0.0]], "b": [[0.0, 0.0, 0.0]]}, 0) == {"a": inf, "b": 1.0}


def enormous(factor: float):  # type: ignore[no-untyped-def]
    def spoil(update: Update) -> Update:
        update.weights = {n: t * factor if t.is_floating_point() else t for n, t in update.weights.items()}
        return update

    return spoil


@pytest.mark.parametrize("site", ["north", "west"])
@pytest.mark.parametrize("method", ["fedavg", "fedavg+median"])
def test_a_scaled_update_is_named_and_the_round_is_that_of_the_others(site: str, method: str, tmp_path: Path) -> None:
    """The first site and the last one, with updates that are used one at a time and with a list of all."""
    server = tiny_server(
        tmp_path / "attacked", tiny_recipe(method), observer=(keeper := Keeper()), engine=spoiling(site, enormous(1e6))
    )
    server.round()
    (event,) = keeper.events
    assert event["refused"].keys() == {site}
    assert event["samples"].keys() == {"north", "south", "west"} - {site}
    said = event["refused"][site]
    assert said.endswith("training.max_update_ratio allows 1000")
    assert said.startswith("left out" if (site, method) == ("north", "fedavg") else "update refused")
    without = tiny_server(tmp_path / "without", tiny_recipe(method), engine=spoiling(site, fail))
    without.round()
    assert_same(server.state.weights, without.state.weights)
    assert server.state.norms == without.state.norms


def test_the_norms_of_a_run_survive_a_restart_and_old_checkpoints_have_none(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe())
    server.round()
    again = tiny_server(tmp_path, tiny_recipe(), engine=spoiling("north", enormous(1e6)), observer=(keeper := Keeper()))
    assert again.state.norms == server.state.norms
    assert all(len(entries) == 1 for entries in again.state.norms.values())
    again.round()
    assert "training.max_update_ratio" in keeper.events[0]["refused"]["north"], "known at once: there is a history"


@pytest.mark.parametrize("size", [3, 2**17 + 5])
@pytest.mark.parametrize("by", [1e-3, 1e17])
def test_norms_are_those_of_the_whole_change(size: int, by: float) -> None:
    """Also of tensors that are looked at in pieces, and of changes whose squares do not fit into single precision."""
    previous = {"w": torch.linspace(-1, 1, size), "b": torch.zeros(2)}
    change = torch.linspace(0.5, 1.5, size) * by
    weights = {"w": previous["w"] + change, "b": torch.ones(2)}
    judge = UpdateBounds("off", 0, previous, frozenset(), {})
    assert judge.accept(Update("a", 0, weights, 1, 1)) is None
    differences = [(weights[name].double() - previous[name].double()).square().sum() for name in previous]
    assert judge.history["a"][0][1] == pytest.approx(float(sum(differences)) ** 0.5, rel=1e-4)
