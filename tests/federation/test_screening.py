"""The hook between the checks and the aggregation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polyclinic.components.aggregation.weighted_mean import WeightedMean
from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Failure, Tensors, Update
from support import Interrupted, Keeping, Killer, assert_same, final_tensors, tiny_recipe, tiny_server

AGGREGATORS = (
    "fedavg", "pathfl", "fgasl", "fedheal", "rscfed", "fedcontrast", "fedavg+median", "fedavg+trimmed_mean(trim=0.4)",
    "fedavg+krum", "fedbn", "local",
)  # fmt: skip


@pytest.mark.parametrize(("method", "streaming"), [("fedavg", True), ("fedavg+norm_clipping", False)])
def test_updates_are_collected_only_for_a_component_that_screens(
    method: str, streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_before: list[int] = []
    aggregate = WeightedMean.aggregate

    def counting(component: WeightedMean, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        def walk() -> Iterable[Update]:
            for update in updates:
                trained_before.append(len(server_.engine.updates))  # type: ignore[attr-defined]
                yield update

        return aggregate(component, server, walk())

    monkeypatch.setattr(WeightedMean, "aggregate", counting)
    server_ = tiny_server(tmp_path, tiny_recipe(method), engine=Keeping)
    server_.round()
    assert trained_before == ([1, 2, 3] if streaming else [3, 3, 3])


@pytest.mark.parametrize("method", AGGREGATORS)
def test_a_bound_that_nothing_reaches_leaves_any_aggregation_as_it_is(method: str, tmp_path: Path) -> None:
    recipes = [tiny_recipe(one, training={"rounds": 2}) for one in (method, f"{method}+norm_clipping(norm=1e9)")]
    plain, clipped = (tiny_server(tmp_path / str(n), recipe) for n, recipe in enumerate(recipes))
    for server in (plain, clipped):
        server.fit()
    assert_same(final_tensors(plain), final_tensors(clipped))


@pytest.mark.parametrize("method", [name for name in AGGREGATORS if name != "local"])
def test_any_aggregation_gets_the_clipped_updates(method: str, tmp_path: Path) -> None:
    """With a bound near 0 no parameter moves, whatever the rule; buffers do."""
    server = tiny_server(tmp_path, tiny_recipe(f"{method}+norm_clipping(norm=1e-12)"))
    start = {n: t.clone() for n, t in server.state.weights.items()}
    server.round()
    buffers = server.workspace.network.buffer_names()
    for name, tensor in server.state.weights.items():
        if name not in buffers:
            torch.testing.assert_close(tensor, start[name], rtol=0, atol=1e-6)
    moved = [n for n in buffers & start.keys() if not torch.equal(start[n], server.state.weights[n])]
    assert moved or method == "fedbn"


def test_components_screen_one_after_another_and_what_they_share_is_combined_as_it_came(tmp_path: Path) -> None:
    seen: list[tuple[str, list[str]]] = []

    def dropping(name: str, drop: str):  # type: ignore[no-untyped-def]
        class Dropping(Component):
            level = "aggregation"

            def screen(self, server: ServerRound, updates: list[Update]) -> list[Update]:
                seen.append((name, [u.site for u in updates]))
                return [replace(u, shared={}) for u in updates if u.site != drop]

        Dropping.name = name
        return Dropping(None, server.workspace.components[0].context)

    server, plain = (tiny_server(tmp_path / n, tiny_recipe("pathfl-afa-ssa"), engine=Keeping) for n in ("one", "two"))
    server.screening = [dropping("first", "west"), dropping("second", "south")]
    server.round()
    assert seen == [("first", ["north", "south", "west"]), ("second", ["north", "south"])]
    (north,) = [u for u in server.engine.updates if u.site == "north"]  # type: ignore[attr-defined]
    assert_same(server.state.weights, north.weights)
    plain.round()
    assert_same(server.state.shared["cse"], plain.state.shared["cse"])


@pytest.mark.parametrize("method", ["fedavg", "fedavg+norm_clipping", "fedavg+median", "fedavg+krum", "pathfl"])
def test_no_update_at_all_gets_a_sentence(method: str, tmp_path: Path) -> None:
    class Failing(InProcess):
        def train(self, broadcast, sites):  # type: ignore[no-untyped-def]
            yield from (Failure(site, broadcast.round, "OSError: no power") for site in sites)

    with pytest.raises(PolyclinicError, match=r"Round 1 got 0 good updates of 3 sites, .*no power"):
        tiny_server(tmp_path, tiny_recipe(method), engine=Failing).round()


@pytest.mark.parametrize("method", ["fedavg+norm_clipping+krum(keep=2)", "fedbn+trimmed_mean", "fedprox+median"])
def test_kill_and_resume_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    whole = tiny_server(tmp_path / "whole", tiny_recipe(method))
    whole.fit()
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "run", tiny_recipe(method), observer=Killer(lambda *at: at[:2] == ("round", 1))).fit()
    resumed = tiny_server(tmp_path / "run", tiny_recipe(method))
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))
