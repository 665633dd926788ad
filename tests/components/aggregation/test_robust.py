"""Robust aggregation against the equations, written out coordinate by coordinate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.aggregation import robust
from polyclinic.components.base import Component, Context
from polyclinic.components.registry import find_component
from polyclinic.components.rounds import ServerRound
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Update
from polyclinic.methods.expression import parse_method
from support import Keeper, Keeping, assert_same, tiny_recipe, tiny_server, tiny_task

Models = dict[str, Tensor]
BUFFERS = frozenset({"running_mean", "num_batches_tracked"})
SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=3)


def models(count: int, shapes: list[tuple[int, ...]] | None = None, seed: int = 0, levels: int = 0) -> list[Models]:
    """Random models; few ``levels`` make ties."""
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> Tensor:
        if levels:
            return torch.randint(0, levels, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    return [
        {f"weight{i}": values(*shape) for i, shape in enumerate(shapes or [(3, 2), ()])}
        | {"running_mean": values(2), "num_batches_tracked": torch.tensor(10 * m + 1)}
        for m in range(count)
    ]


def updates_of(weights: list[Models], samples: list[int] | None = None) -> list[Update]:
    counts = samples or [1] * len(weights)
    return [Update(f"site{m}", 0, w, n, 1) for m, (w, n) in enumerate(zip(weights, counts, strict=True))]


def server_round(previous: Models, policy: str = "average") -> tuple[ServerRound, list[str]]:
    warned: list[str] = []
    network: Any = None
    server = ServerRound(
        0, 1, network, previous, (), BUFFERS, policy, torch.Generator(), torch.device("cpu"), warn=warned.append
    )
    return server, warned


def make(name: str, **chosen: Any) -> Any:
    cls = find_component(name)
    return cls(cls.Settings(**chosen), Context(tiny_task()))


def aggregated(component: Component, weights: list[Models], samples: list[int] | None = None, policy: str = "average"):  # type: ignore[no-untyped-def]
    server, warned = server_round({n: torch.zeros_like(t) for n, t in weights[0].items()}, policy)
    return component.aggregate(server, updates_of(weights, samples)), server.notes, warned


def naive_coordinates(weights: list[Models], name: str, rule: Any) -> Tensor:
    """A rule over the sorted values of the sites, one coordinate after another."""
    flat = [w[name].flatten().tolist() for w in weights]
    found = [rule(sorted(site[k] for site in flat)) for k in range(weights[0][name].numel())]
    return torch.tensor(found, dtype=torch.float64).reshape(weights[0][name].shape)


def naive_median(values: list[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


# ---- coordinate-wise rules -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), SHAPES, st.integers(0, 99), st.sampled_from([0, 2]))
def test_the_median_is_that_of_every_coordinate(count: int, shapes: Any, seed: int, levels: int) -> None:
    sites = models(count, shapes, seed, levels)
    result, _, warned = aggregated(make("median"), sites, list(range(count)))
    for name in sites[0].keys() - {"num_batches_tracked"}:
        torch.testing.assert_close(result[name], naive_coordinates(sites, name, naive_median).float(), rtol=0, atol=0)
        assert result[name].dtype == torch.float32
    assert result["num_batches_tracked"].dtype == torch.int64
    assert int(result["num_batches_tracked"]) == 10 * (count - 1) + 1
    assert not warned


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), SHAPES, st.integers(0, 99), st.floats(0, 0.5, exclude_max=True))
def test_the_trimmed_mean_is_that_of_every_coordinate(count: int, shapes: Any, seed: int, trim: float) -> None:
    sites = models(count, shapes, seed)
    result, _, warned = aggregated(make("trimmed_mean", trim=trim), sites)
    cut = int(trim * count)

    def rule(values: list[float]) -> float:
        kept = values[cut : len(values) - cut]
        return sum(kept) / len(kept)

    for name in sites[0].keys() - {"num_batches_tracked"}:
        torch.testing.assert_close(result[name], naive_coordinates(sites, name, rule).float(), rtol=1e-6, atol=1e-7)
    assert bool(warned) == (cut == 0 and trim > 0)


@pytest.mark.parametrize(
    ("trim", "count", "cut"),
    [(0.1, 9, 0), (0.1, 10, 1), (0.2, 5, 1), (0.29, 100, 29), (0.3, 10, 3), (0.4999999999, 2, 0), (0.49, 3, 1)],
)
def test_how_many_are_cut_at_each_end(trim: float, count: int, cut: int) -> None:
    """A product that is a little too small because of its binary digits still cuts what was asked for."""
    assert make("trimmed_mean", trim=trim)._cut(count) == cut


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (3, "trimmed_mean: trim=0.1 cuts nothing of 3 updates; trim=0.34 would cut one at each end."),
        (9, "trimmed_mean: trim=0.1 cuts nothing of 9 updates; trim=0.12 would cut one at each end."),
        (2, "trimmed_mean: trim=0.1 cuts nothing of 2 updates; it takes three to cut one at each end."),
    ],
)
def test_a_trim_that_cuts_nothing_is_said_once_with_one_that_would(count: int, words: str) -> None:
    component, sites = make("trimmed_mean"), models(count)
    assert aggregated(component, sites)[2] == [words]
    assert aggregated(component, sites)[2] == []
    named = re.search(r"trim=([\d.]+) would", words)
    if named:
        assert make("trimmed_mean", trim=float(named[1]))._cut(count) == 1
    assert aggregated(make("trimmed_mean", trim=0), sites)[2] == []


def test_large_weights_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = models(5, [(7, 3), (2,)])
    whole = [aggregated(make(name), sites)[:2] for name in ("median", "krum")]
    monkeypatch.setattr(robust, "_ROOM", 20)
    pieces = list(robust.side_by_side(updates_of(sites), "weight0"))
    assert [tuple(piece.shape) for piece in pieces] == [(5, 4)] * 5 + [(5, 1)]
    for (weights, notes), name in zip(whole, ("median", "krum"), strict=True):
        again, noted, _ = aggregated(make(name), sites)
        assert_same(weights, again)
        assert noted.get("krum", {}).get("score", {}) == pytest.approx(notes.get("krum", {}).get("score", {}))


# ---- Krum ------------------------------------------------------------------------------------------------------------


def naive_krum(sites: list[Models], bad: int) -> list[float]:
    """Scores as printed, with distances summed number by number; at least one neighbour."""
    names = [n for n in sites[0] if n not in BUFFERS]
    flat = [[v for n in names for v in site[n].double().flatten().tolist()] for site in sites]
    scores = []
    for i, own in enumerate(flat):
        others = [sum((a - b) ** 2 for a, b in zip(own, o, strict=True)) for j, o in enumerate(flat) if j != i]
        scores.append(sum(sorted(others)[: max(1, len(sites) - bad - 2)]))
    return scores


@settings(deadline=None, max_examples=60)
@given(st.integers(3, 9), SHAPES, st.integers(0, 99), st.none() | st.integers(0, 5), st.integers(1, 10))
def test_krum_takes_the_mean_of_the_models_with_the_smallest_scores(
    count: int, shapes: Any, seed: int, byzantine: int | None, keep: int
) -> None:
    sites = models(count, shapes, seed)
    component = make("krum", byzantine=byzantine, keep=keep)
    result, notes, warned = aggregated(component, sites)
    bad = max(f for f in range(count) if count >= 2 * f + 3) if byzantine is None else byzantine
    scores = naive_krum(sites, bad)
    assert list(notes["krum"]["score"].values()) == pytest.approx(scores)
    order = sorted(range(count), key=lambda i: (notes["krum"]["score"][f"site{i}"], i))
    chosen = order[:keep]
    assert notes["krum"]["chosen"] == {f"site{i}": float(i in chosen) for i in range(count)}
    for name in sites[0].keys() - {"num_batches_tracked"}:
        mean = torch.stack([sites[i][name].double() for i in chosen]).mean(0).float()
        torch.testing.assert_close(result[name], mean, rtol=1e-6, atol=1e-7)
    assert int(result["num_batches_tracked"]) == 10 * min(chosen) + 1
    assert bool(warned) == (count < 2 * bad + 3 or keep > count - bad)


def test_krum_without_keep_is_one_sites_model_bit_for_bit_and_not_an_outlier() -> None:
    sites = models(5, seed=3)
    sites[0]["weight0"] += 50
    result, notes, warned = aggregated(make("krum"), sites, [1000, 1, 1, 1, 1])
    (chosen,) = [site for site, value in notes["krum"]["chosen"].items() if value]
    assert chosen != "site0"
    assert_same(result, sites[int(chosen[-1])])
    assert not warned


def test_of_equal_scores_the_first_site_is_taken() -> None:
    """Of three sites two are each other's nearest, so that the smallest score is always shared."""
    sites = models(3, seed=1)
    sites[2] = {n: t + 1e-3 if t.is_floating_point() else t for n, t in sites[1].items()}
    result, notes, _ = aggregated(make("krum"), sites)
    assert notes["krum"]["score"]["site1"] == notes["krum"]["score"]["site2"]
    assert_same(result, sites[1])


def test_buffers_have_no_say_in_krums_choice() -> None:
    sites = models(5, seed=4)
    plain = aggregated(make("krum"), sites)[1]
    sites[1]["running_mean"] += 1e6
    assert aggregated(make("krum"), sites)[1] == plain


@pytest.mark.parametrize(
    ("count", "chosen", "words"),
    [
        (2, {}, "krum: of 2 updates none is nearer to the others; they are averaged."),
        (5, {"byzantine": 2}, "krum: byzantine=2 needs 7 updates, and 5 came; nothing is sure."),
        (7, {"keep": 6}, "krum: keep=6 of 7 updates takes in some of 2 bad ones."),
    ],
)
def test_krum_says_once_where_theory_promises_nothing(count: int, chosen: dict[str, int], words: str) -> None:
    component, sites = make("krum", **chosen), models(count)
    assert aggregated(component, sites)[2] == [words]
    assert aggregated(component, sites)[2] == []


# ---- clipping --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), SHAPES, st.integers(0, 99), st.just("median") | st.floats(0.01, 5))
def test_clipping_shortens_every_difference_to_the_bound(count: int, shapes: Any, seed: int, norm: Any) -> None:
    *sites, previous = models(count + 1, shapes, seed)
    names = [n for n in previous if n not in BUFFERS]
    server, _ = server_round(previous)
    updates = updates_of(sites)
    screened = make("norm_clipping", norm=norm).screen(server, updates)
    norms = []
    for site in sites:
        moved = [
            float(a) - float(b) for n in names for a, b in zip(site[n].flatten(), previous[n].flatten(), strict=True)
        ]
        norms.append(sum(v * v for v in moved) ** 0.5)
    bound = naive_median(sorted(v for v in norms if v > 0) or [0.0]) if norm == "median" else norm
    assert list(server.notes["norm_clipping"]["norm"].values()) == pytest.approx(norms)
    for before, after, length in zip(updates, screened, norms, strict=True):
        factor = server.notes["norm_clipping"]["factor"].get(before.site, 1.0)
        assert factor == pytest.approx(1 / max(1, length / bound) if bound else 1)
        for name, tensor in after.weights.items():
            if name in BUFFERS:
                assert tensor is before.weights[name]
                continue
            wanted = previous[name].double() + factor * (before.weights[name].double() - previous[name].double())
            torch.testing.assert_close(tensor, wanted.float(), rtol=1e-6, atol=1e-7)
        assert (after is before) == (before.site not in server.notes["norm_clipping"]["factor"])


def test_clipping_changes_nothing_in_place_and_keeps_the_rest_of_an_update() -> None:
    *sites, previous = models(4)
    copies = [{n: t.clone() for n, t in site.items()} for site in sites]
    server, _ = server_round(previous)
    updates = updates_of(sites, [5, 6, 7])
    updates[0].shared["gaa"] = {"gap": torch.ones(())}
    screened = make("norm_clipping", norm=0.1).screen(server, updates)
    for site, copy in zip(sites, copies, strict=True):
        assert_same(site, copy)
    assert [u.samples for u in screened] == [5, 6, 7]
    assert screened[0].shared is updates[0].shared


def test_sites_that_did_not_move_do_not_stop_the_others() -> None:
    (moved, previous) = models(2)
    server, _ = server_round(previous)
    updates = updates_of([previous, previous, moved])
    assert make("norm_clipping").screen(server, updates) == updates
    assert server.notes["norm_clipping"]["factor"] == {}


# ---- all of them -----------------------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum"])


@EVERY
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_identical_updates_give_exactly_that_model(name: str, count: int) -> None:
    (model,) = models(1)
    result, _, _ = aggregated(make(name), [model] * count)
    assert_same(result, model)


@EVERY
def test_two_sites_meet_in_the_middle(name: str) -> None:
    first, second = models(2)
    result, _, _ = aggregated(make(name), [first, second], [100, 1])
    for key in first.keys() - {"num_batches_tracked"}:
        torch.testing.assert_close(result[key], (first[key] + second[key]) / 2)
    assert torch.equal(result["num_batches_tracked"], first["num_batches_tracked"])


@EVERY
def test_numbers_of_samples_do_not_count(name: str) -> None:
    sites = models(5)
    one, other = (aggregated(make(name), sites, samples)[0] for samples in ([9, 1, 1, 1, 1], [9, 8, 7, 6, 5]))
    assert_same(one, other)


@EVERY
def test_largest_takes_buffers_from_the_site_with_most_samples(name: str) -> None:
    sites, keep = models(5), {"keep": 5} if name == "krum" else {}
    result, _, _ = aggregated(make(name, **keep), sites, [2, 9, 9, 1, 1], "largest")
    assert torch.equal(result["running_mean"], sites[1]["running_mean"])
    assert not torch.equal(result["weight0"], sites[1]["weight0"])


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("fedprox+median", ["median", "proximal"]),
        ("fedbn+krum", ["krum", "local_norm"]),
        ("pathfl+median", ["median", "cse", "afa"]),
        ("fgasl+trimmed_mean(trim=0.2)", ["trimmed_mean", "dual_teacher", "perturbation_invariance"]),
        ("fedavg+median+krum", ["krum"]),
        ("pathfl+norm_clipping", ["ssa", "cse", "afa", "norm_clipping"]),
        ("fedavg+norm_clipping(norm=2)+median", ["median", "norm_clipping"]),
    ],
)
def test_an_aggregator_replaces_the_methods_own_and_clipping_joins_it(expression: str, parts: list[str]) -> None:
    assert [p.component for p in parse_method(expression).parts] == parts


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("fedavg+trimmed_mean(trim=0.5)", "less than 0.5"),
        ("fedavg+krum(keep=0)", "greater than or equal to 1"),
        ("fedavg+norm_clipping(norm=0)", "greater than 0"),
        ("fedavg+norm_clipping(norm=mean)", "'median'"),
    ],
)
def test_a_wrong_setting_gets_a_sentence(expression: str, words: str) -> None:
    with pytest.raises(PolyclinicError, match=re.escape(words)):
        parse_method(expression)


@pytest.mark.parametrize("page", ["docs/explanation/robust-aggregation.md"])
def test_the_page_has_every_setting(page: str) -> None:
    text = (Path(__file__).resolve().parents[3] / page).read_text(encoding="utf-8")
    for name in ("median", "trimmed_mean", "krum", "norm_clipping"):
        for setting in find_component(name).Settings.model_fields:
            assert re.search(rf"^\| `{name}` \| `{setting}`", text, re.MULTILINE), f"{name}.{setting}"


@pytest.mark.parametrize("name", ["median", "trimmed_mean(trim=0.34)", "krum", "norm_clipping(norm=0.05)"])
def test_kept_weights_never_arrive_and_the_round_is_the_equation(name: str, tmp_path: Path) -> None:
    """Through the server, with norms that stay at the sites."""
    server = tiny_server(
        tmp_path, tiny_recipe(f"fedbn+{name}"), observer=(keeper := Keeper()), engine=Keeping
    )  # fmt: skip
    start = {n: t.clone() for n, t in server.state.weights.items()}
    server.round()
    updates = server.engine.updates  # type: ignore[attr-defined]
    sites = [u.weights for u in updates]
    assert not sites[0].keys() & server.workspace.network.norm_names()
    notes = keeper.events[0]["notes"]
    for key, tensor in server.state.weights.items():
        if name.startswith("krum"):
            (chosen,) = [site for site, value in notes["krum"]["chosen"].items() if value]
            wanted = next(u.weights[key] for u in updates if u.site == chosen)
        elif name.startswith("norm"):
            assert notes["norm_clipping"]["factor"]
            factors = [notes["norm_clipping"]["factor"].get(u.site, 1.0) for u in updates]
            moved = sum(f * (u.weights[key] - start[key]) for u, f in zip(updates, factors, strict=True))
            wanted = start[key] + moved / len(updates)  # FedBN's mean is uniform
        else:  # of three sites both rules leave the one in the middle
            wanted = naive_coordinates(sites, key, naive_median).float()
        torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-6)
