"""A profiled round: every phase and component is there, the spans nest, and nothing else changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.components.base import Component
from polyclinic.core.timing import Timeline, recording
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.profiling import HOOKS, PHASES, profiled
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.training import LocalTraining
from polyclinic.federation.workspace import Workspace
from polyclinic.networks import SegmentationNetwork
from support import assert_same, final_tensors, tiny_recipe, tiny_server

METHOD = "fedbcs+proximal(mu=0.1)"


def everything_wrapped() -> dict[tuple[Any, str], Any]:
    """The code that a profile replaces, as it is now."""
    more = [
        (Server, "_attempt"), (Server, "_accepted"), (Site, "train"), (Site, "evaluate"), (LocalTraining, "_steps"),
        (LocalTraining, "__init__"), (Workspace, "fresh_components"), (SegmentationNetwork, "insert"),
    ]  # fmt: skip
    return {(owner, name): vars(owner)[name] for owner, name in [*((o, n) for o, n, _ in PHASES), *more]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Timeline, Server]:
    """Two rounds of a method of several components."""
    timeline = Timeline()
    with profiled(timeline):
        server = tiny_server(tmp_path_factory.mktemp("profiled"), tiny_recipe(METHOD, training={"rounds": 2}))
        server.fit()
    return timeline, server


def test_the_weights_are_those_of_a_run_that_nobody_profiles(run: tuple[Timeline, Server], tmp_path: Path) -> None:
    plain = everything_wrapped()
    server = tiny_server(tmp_path, tiny_recipe(METHOD, training={"rounds": 2}))
    server.fit()
    assert_same(final_tensors(server), final_tensors(run[1]))
    assert everything_wrapped() == plain


def test_nothing_is_wrapped_before_and_after(tmp_path: Path) -> None:
    plain = everything_wrapped()

    def fail() -> None:
        during = everything_wrapped()
        assert recording() is not None
        assert all(during[key] is not plain[key] for key in plain)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), profiled(Timeline()):
        fail()
    assert everything_wrapped() == plain
    assert recording() is None
    server = tiny_server(tmp_path, tiny_recipe("fedprox"))
    hooks = {hook for component in server.components for hook in HOOKS if hook in vars(component)}
    assert hooks == set(), "no wrapper is installed where nobody profiles"


def test_all_phases_and_components_are_there(run: tuple[Timeline, Server]) -> None:
    timeline, server = run
    names = {kind.name for kind in timeline.totals if not kind.component}
    wanted = {"round", "site", "local training", "batch", "step", "gradients", "backward", "optimiser", "scoring"}
    wanted |= {"waiting for updates", "save state"} | {name for _, _, name in PHASES}
    assert wanted - names == {"unlabelled views", "metrics"} - names
    assert {kind.component for kind in timeline.totals} - {""} == {c.name for c in server.components}
    hooks = {(kind.component, kind.name) for kind in timeline.totals if kind.component and kind.name in HOOKS}
    overridden = {
        (c.name, hook)
        for c in server.components
        for hook in ("loss", "on_gradients", "share", "aggregate", "combine", "receive")
        if getattr(type(c), hook) is not getattr(Component, hook)
    }
    assert overridden <= hooks
    assert ("fsr", "module") in {(kind.component, kind.name) for kind in timeline.totals}
    assert {kind.site for kind in timeline.totals if kind.name == "backward"} == set(server.sites)
    assert all(not kind.component for kind in timeline.totals if kind.name == "site"), "no part of the aggregation"


def test_spans_of_a_thread_nest(run: tuple[Timeline, Server]) -> None:
    timeline, _ = run
    for thread in {span.thread for span in timeline.spans}:
        open_ends: list[int] = []
        spans = [span for span in timeline.spans if span.thread == thread]
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            while open_ends and open_ends[-1] <= span.start:
                open_ends.pop()
            assert not open_ends or span.end <= open_ends[-1], span
            open_ends.append(span.end)


def test_a_round_is_the_sum_of_its_parts(run: tuple[Timeline, Server]) -> None:
    timeline, _ = run
    rounds = [span for span in timeline.spans if span.name == "round"]
    assert [span.round for span in rounds] == [0, 1]
    assert all(first.end <= second.start for first, second in pairwise(rounds))
    for span in rounds:
        parts = [a for kind, (a, *_) in timeline.totals.items() if kind.round == span.round and not kind.beside]
        assert sum(parts) == span.end - span.start


def test_the_test_is_timed_too(tmp_path: Path) -> None:
    with profiled(Timeline()) as timeline:
        server = tiny_server(tmp_path, tiny_recipe("fedavg", training={"rounds": 1}))
        list(server.engine.evaluate(Broadcast(0, server.state.weights), server.sites, "test", detailed=True))
    assert {"scoring", "prediction", "forward", "metrics"} <= {kind.name for kind in timeline.totals}


def test_an_optimiser_of_a_component_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.components.objectives.proximal import Proximal

    def make_optimizer(_: object, parameters: dict[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters.values()), 0.1)

    monkeypatch.setattr(Proximal, "make_optimizer", make_optimizer)
    with profiled(Timeline()) as timeline:
        tiny_server(tmp_path, tiny_recipe("fedprox", training={"rounds": 1})).round()
    counts = {kind.name: 0 for kind in timeline.totals}
    for kind, (_, _, count) in timeline.totals.items():
        counts[kind.name] += count
    assert counts["optimiser"] == counts["step"] > 0
