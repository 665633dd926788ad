from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixed_sites import MIXED, component_of, mixed_server, mixed_site, shake, site_round
from polyclinic.components.aggregation.gaa import Gaa
from polyclinic.components.base import Context
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.unlabelled.teachers import StaticTeacher
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from support import (
    Keeper,
    Keeping,
    assert_same,
    tiny_recipe,
    tiny_server,
    tiny_site,
    tiny_task,
)

GAA = "fedavg+gaa"
NETWORK = UNet(1, 2, 2, tiny_recipe().network)
SHORT = {"local_epochs": 1, "rounds": 2, "validate_every": 2}


def gaa(**chosen: Any) -> Gaa:
    return Gaa(Gaa.Settings(**chosen), Context(tiny_task()))


def server_round(number: int, sites: Sequence[str], rounds: int = 10) -> ServerRound:
    said: list[str] = []
    server = ServerRound(
        number, rounds, NETWORK, {"w": torch.zeros(2)}, tuple(sites), frozenset(), "average", torch.Generator(),
        torch.device("cpu"), warn=said.append,
    )  # fmt: skip
    server.said = said  # type: ignore[attr-defined]
    return server


def shared(gaps: dict[str, float]) -> dict[str, dict[str, torch.Tensor]]:
    return {site: {"gap": torch.tensor(gap)} for site, gap in gaps.items()}


def weights_of(component: Gaa) -> dict[str, float]:
    return {name.removeprefix("weight/"): float(value) for name, value in component.state.items()}


def mean_of(component: Gaa, server: ServerRound, models: dict[str, float]) -> float:
    """The aggregate of models that are one number each."""
    updates = [Update(s, server.round, {"w": torch.full((2,), v)}, 1, 1) for s, v in models.items()]
    return float(component.aggregate(server, iter(updates))["w"][0])


def naive(
    before: list[float], gaps: list[float], d: float, number: int, rounds: int, rule: str, least: float
) -> list[float]:
    """Equation 5 as it is printed, or the released rule, then the clip."""
    middle = sum(gaps) / len(gaps)
    pace = (1 - number / rounds) * d
    if rule == "paper":
        moved = [(g - middle) * pace / max(x - middle for x in gaps) + a for g, a in zip(gaps, before, strict=True)]
    else:
        moved = [g * pace / max(abs(x) for x in gaps) + a for g, a in zip(gaps, before, strict=True)]
    clipped = [min(1.0, max(least, a)) for a in moved]
    return [a / sum(clipped) for a in clipped]


# ---- equation 5 ------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(0.01, 5), min_size=4, max_size=4, unique=True), min_size=1, max_size=4),
    st.sampled_from(["paper", "official"]),
    st.sampled_from([None, 0.1, 0.7]),
    st.sampled_from([0.0, 0.05]),
)
def test_weights_follow_the_equation_round_by_round(
    gaps: list[list[float]], rule: str, pace: float | None, least: float
) -> None:
    sites = ["a", "b", "c", "d"]
    component = gaa(rule=rule, pace=pace, least=least)
    expected = [0.25] * 4
    for number, row in enumerate(torch.tensor(gaps).tolist()):
        component.combine(server_round(number, sites), shared(dict(zip(sites, row, strict=True))))
        if max(row) - min(row) > 1e-6:
            expected = naive(expected, row, 0.05 / 4 if pace is None else pace, number, 10, rule, least)
        assert list(weights_of(component).values()) == pytest.approx(expected, abs=1e-6)
        assert sum(weights_of(component).values()) == pytest.approx(1)


def test_a_larger_gap_earns_more_weight_and_the_pace_falls_to_its_last_step() -> None:
    sites = ["a", "b"]
    moves = []
    for number in (0, 5, 9):
        component = gaa(pace=0.1)
        component.combine(server_round(number, sites), shared({"a": 3.0, "b": 1.0}))
        moves.append(weights_of(component)["a"] - 0.5)
    assert moves == pytest.approx([0.1, 0.05, 0.01])


def test_the_first_round_is_uniform_and_its_update_acts_in_the_second() -> None:
    component, sites, models = gaa(pace=0.3), ["a", "b"], {"a": 1.0, "b": 3.0}
    assert mean_of(component, server_round(0, sites), models) == 2
    component.combine(server_round(0, sites), shared({"a": 5.0, "b": 1.0}))
    assert mean_of(component, server_round(1, sites), models) == pytest.approx(0.8 * 1 + 0.2 * 3)


def test_samples_have_no_part_in_the_weights() -> None:
    server = server_round(0, ["a", "b"])
    updates = [Update(s, 0, {"w": torch.full((2,), v)}, n, 1) for s, v, n in (("a", 1.0, 100), ("b", 3.0, 1))]
    assert gaa().aggregate(server, iter(updates))["w"].tolist() == [2, 2]


@pytest.mark.parametrize("rule", ["paper", "official"])
@pytest.mark.parametrize("gap", [0.0, 0.37])
def test_equal_gaps_leave_the_weights(rule: str, gap: float) -> None:
    sites = ["a", "b", "c"]
    component = gaa(rule=rule, pace=0.3)
    component.combine(server_round(0, sites), shared({"a": 4.0, "b": 1.0, "c": 1.0}))
    before = weights_of(component)
    component.combine(server_round(1, sites), shared(dict.fromkeys(sites, gap)))
    after = weights_of(component)
    if rule == "paper" or gap == 0:
        assert after == pytest.approx(before, abs=1e-9)
    else:  # without a centre all rise alike, and the scaling draws them together
        assert list(after.values()) == pytest.approx(naive(list(before.values()), [gap] * 3, 0.3, 1, 10, rule, 0))


@pytest.mark.parametrize("rule", ["paper", "official"])
def test_one_site_has_all_the_weight(rule: str) -> None:
    component = gaa(rule=rule)
    for number in range(3):
        assert mean_of(component, server_round(number, ["a"]), {"a": 7.5}) == 7.5
        component.combine(server_round(number, ["a"]), shared({"a": 0.4}))
        assert weights_of(component) == {"a": 1}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gap_that_is_not_finite_counts_as_the_mean_of_the_others(bad: float) -> None:
    sites = ["a", "b", "c"]
    first, second = gaa(pace=0.1), gaa(pace=0.1)
    server = server_round(0, sites)
    first.combine(server, shared({"a": 3.0, "b": bad, "c": 1.0}))
    second.combine(server_round(0, sites), shared({"a": 3.0, "b": 2.0, "c": 1.0}))
    assert weights_of(first) == weights_of(second)
    (sentence,) = server.said  # type: ignore[attr-defined]
    assert "gap of b" in sentence
    assert str(bad) in sentence


def test_gaps_of_which_none_is_finite_leave_the_weights() -> None:
    server = server_round(0, ["a", "b"])
    component = gaa(pace=0.4)
    component.combine(server, shared({"a": math.nan, "b": math.inf}))
    assert weights_of(component) == {"a": 0.5, "b": 0.5}
    assert len(server.said) == 2  # type: ignore[attr-defined]


def test_a_site_can_be_driven_to_zero_and_come_back() -> None:
    component, sites = gaa(pace=0.9), ["a", "b", "c"]
    # b is further below the mean than a is above it, so its change is larger than the pace.
    component.combine(server_round(0, sites), shared({"a": 2.0, "b": 0.0, "c": 2.0}))
    assert weights_of(component) == {"a": 0.5, "b": 0, "c": 0.5}
    assert mean_of(component, server_round(1, sites), {"a": 1.0, "b": 1e6, "c": 3.0}) == 2
    component.combine(server_round(1, sites), shared({"a": 0.0, "b": 2.0, "c": 1.0}))
    assert weights_of(component)["b"] > 0.4


def test_the_floor_holds_before_the_scaling() -> None:
    component, sites = gaa(pace=0.9, least=0.1), ["a", "b", "c"]
    component.combine(server_round(0, sites), shared({"a": 2.0, "b": 0.0, "c": 2.0}))
    assert weights_of(component) == pytest.approx({"a": 1 / 2.1, "b": 0.1 / 2.1, "c": 1 / 2.1})


def test_weights_that_are_all_zero_become_equal() -> None:
    component, sites = gaa(rule="official", pace=5.0), ["a", "b"]
    component.combine(server_round(0, sites), shared({"a": -1.0, "b": -1.0}))
    assert weights_of(component) == {"a": 0.5, "b": 0.5}


def test_a_round_of_sites_without_weight_is_their_plain_mean() -> None:
    component, sites = gaa(), ["a", "b", "c"]
    component.state = {f"weight/{site}": torch.tensor(float(site == "a"), dtype=torch.float64) for site in sites}
    assert mean_of(component, server_round(1, sites), {"b": 1.0, "c": 4.0}) == 2.5
    assert mean_of(component, server_round(1, sites), {"a": 0.25, "b": 1.0, "c": 1e30}) == 0.25


def test_an_absent_site_waits_with_its_weight() -> None:
    component, sites = gaa(pace=0.2), ["a", "b", "c"]
    component.combine(server_round(0, sites), shared({"a": 3.0, "b": 1.0}))
    third = 1 / 3
    assert weights_of(component) == pytest.approx({"a": third + 0.2, "b": third - 0.2, "c": third})
    share = (third + 0.2) / (third + 0.2 + third)
    assert mean_of(component, server_round(1, sites), {"a": 1.0, "c": 0.0}) == pytest.approx(share)
    component.combine(server_round(1, sites), {})  # nobody answered
    assert weights_of(component) == pytest.approx({"a": third + 0.2, "b": third - 0.2, "c": third})


# ---- equation 4 ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def naive_gap(received: UNet, trained: UNet, images: torch.Tensor) -> float:
    total, count = 0.0, 0
    for image in images:
        logits = [network.eval()(image[None])[0].double() for network in (received, trained)]
        p, q = (one.softmax(0).flatten(1).T.tolist() for one in logits)
        for before, after in zip(p, q, strict=True):
            for a, b in zip(before, after, strict=True):
                total += a * (math.log(a) - math.log(b))
                count += 1
    return total / count


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("counts", [(3, 2), (2, 0), (0, 2)])
def test_the_gap_is_the_divergence_over_all_training_images(counts: tuple[int, int], dims: int) -> None:
    workspace = build_workspace(tiny_recipe(GAA, network={"width": 6, "depth": 1}), tiny_task(dims))
    with torch.no_grad():
        workspace.network.classifier.weight.mul_(8)  # so that images differ
    shake(workspace.network, 1)
    received = copy.deepcopy(workspace.network)
    site = site_round(workspace, mixed_site("north", *counts, dims), batch_size=2)
    shake(workspace.network, 2, 0.1)
    workspace.network.train()
    state = {n: t.clone() for n, t in workspace.network.state_dict().items()}
    sent = component_of(workspace, "gaa").share(site)
    assert sent.keys() == {"gap"}
    assert sent["gap"].shape == ()
    assert sent["gap"].dtype == torch.float32
    images = site.data.images.batch(site.data.training_indices())[0]
    assert float(sent["gap"]) == pytest.approx(naive_gap(received, copy.deepcopy(workspace.network), images), rel=1e-3)
    assert float(sent["gap"]) > 1e-4
    assert workspace.network.training
    assert_same(state, dict(workspace.network.state_dict()))


def test_a_site_that_did_not_move_has_no_gap() -> None:
    workspace = build_workspace(tiny_recipe(GAA), tiny_task())
    site = site_round(workspace, mixed_site("north", 2, 2))
    assert float(component_of(workspace, "gaa").share(site)["gap"]) == 0


def test_outputs_that_a_teacher_has_seen_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe(GAA), tiny_task())
    site = site_round(workspace, mixed_site("north", 3, 4), batch_size=2)
    alone = float(
        component_of(workspace, "gaa").share(site_round(workspace, mixed_site("north", 3, 4), batch_size=2))["gap"]
    )
    shake(workspace.network, 2)
    indices = site.data.training_indices(False)
    StaticTeacher(site).known(indices, site.data.images.batch(indices)[0])
    seen = {"student": 0, "static": 0}
    encode = UNet.encode

    def counted(network: UNet, images: torch.Tensor) -> list[torch.Tensor]:
        seen["student" if network is workspace.network else "static"] += len(images)
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counted)
    found = float(component_of(workspace, "gaa").share(site)["gap"])
    assert seen == {"student": 7, "static": 3}
    assert found > alone == 0


def test_patches_in_training_mean_windows_here(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = build_workspace(tiny_recipe(GAA, data={"patch": [4, 8]}), tiny_task())
    site = site_round(workspace, mixed_site("north", 2, 1))
    sizes: set[tuple[int, ...]] = set()
    encode = UNet.encode
    monkeypatch.setattr(UNet, "encode", lambda n, x: (sizes.add(tuple(x.shape[2:])), encode(n, x))[1])
    component_of(workspace, "gaa").share(site)
    assert sizes == {(4, 8)}


def test_images_thinner_than_the_network_allows_are_padded() -> None:
    """Where training pads them to its patches; without it the site would be refused after all of its work."""
    workspace = build_workspace(tiny_recipe(GAA, data={"patch": [8, 8]}), tiny_task())
    thin = [torch.rand(2, 2, 8), torch.rand(2, 3, 9)]
    labels = [torch.zeros(image.shape[1:], dtype=torch.uint8) for image in thin]
    samples = tiny_site("north", 2).images.samples[:2]
    none = torch.empty(0, dtype=torch.long)
    splits = {"train": torch.arange(2), "val": none, "test": none}
    site = site_round(
        workspace, SiteData("north", ImageSet(thin, labels, torch.ones(2, dtype=torch.bool), samples), splits)
    )
    shake(workspace.network, 1)
    assert 0 < float(component_of(workspace, "gaa").share(site)["gap"]) < torch.inf


def test_nothing_is_kept_that_nobody_will_read() -> None:
    workspace = build_workspace(tiny_recipe(GAA), tiny_task())
    site = site_round(workspace, mixed_site("north", 2, 2))
    component_of(workspace, "gaa").share(site)
    assert site.static_outputs is None


# ---- in a federation -------------------------------------------------------------------------------------------------


def test_one_number_leaves_beside_the_weights() -> None:
    workspace = build_workspace(tiny_recipe("fgasl"), tiny_task())
    declared = {name: [(one.name, one.shape) for one in what] for name, what in workspace.declared().items() if what}
    assert declared == {"gaa": [("gap", ())]}


def test_a_run_uses_the_weights_of_the_rounds_before(tmp_path: Path) -> None:
    recipe = tiny_recipe(GAA + "(pace=0.2)", training={**SHORT, "rounds": 3})
    server = mixed_server(
        tmp_path, recipe, {"a": (3, 0), "b": (4, 0), "c": (2, 0)}, engine=Keeping, observer=(keeper := Keeper())
    )
    expected = [1 / 3] * 3
    for number in range(3):
        server.round()
        updates = server.engine.updates[-3:]  # type: ignore[attr-defined]
        for name, tensor in server.state.weights.items():
            if tensor.is_floating_point():
                mean = sum(a * u.weights[name].double() for a, u in zip(expected, updates, strict=True))
                torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-7)
        gaps = [float(u.shared["gaa"]["gap"]) for u in updates]
        noted = keeper.events[-1]["notes"]["gaa"]
        assert noted["gap"] == dict(zip("abc", gaps, strict=True))
        other = naive(expected, gaps, 0.2, number, 3, "official", 0)
        assert list(noted["weight/official"].values()) == pytest.approx(other)
        expected = naive(expected, gaps, 0.2, number, 3, "paper", 0)
        assert noted["weight/paper"] == pytest.approx(dict(zip("abc", expected, strict=True)))
        assert weights_of(server.aggregator) == pytest.approx(dict(zip("abc", expected, strict=True)))  # type: ignore[arg-type]
    assert max(expected) - min(expected) > 0.05


def test_half_of_the_sites_in_a_round(tmp_path: Path) -> None:
    recipe = tiny_recipe("fgasl+gaa(pace=0.2)", training={**SHORT, "participation": 0.5, "rounds": 4})
    server = mixed_server(tmp_path / "whole", recipe, observer=(keeper := Keeper()))
    for _ in range(4):
        before = weights_of(server.aggregator) or dict.fromkeys(MIXED, 0.25)  # type: ignore[arg-type]
        server.round()
        after = weights_of(server.aggregator)  # type: ignore[arg-type]
        answered = set(keeper.events[-1]["samples"])
        assert len(answered) == 2
        waiting = sorted(set(MIXED) - answered)
        assert after[waiting[0]] / after[waiting[1]] == pytest.approx(before[waiting[0]] / before[waiting[1]])
        assert sum(after.values()) == pytest.approx(1)
    assert not keeper.refusals


class Overflowing(InProcess):
    """One site cannot say how far it is."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            if isinstance(answer, Update) and answer.site == "south":
                answer.shared["gaa"]["gap"] = torch.tensor(math.nan)
            yield answer


def test_a_nan_in_a_run_is_a_warning_and_no_refusal(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(GAA), observer=(keeper := Keeper()), engine=Overflowing)
    server.round()
    assert not keeper.refusals
    assert any("gap of south is nan" in warning for warning in keeper.events[0]["warnings"])
    assert all(math.isfinite(value) for value in weights_of(server.aggregator).values())  # type: ignore[arg-type]
