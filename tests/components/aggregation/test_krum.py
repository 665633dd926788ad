"""Krum against scores summed number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from site_models import (
    BUFFERS,
    SHAPES,
    Models,
    aggregated,
    make,
    models,
)
from support import assert_same


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
