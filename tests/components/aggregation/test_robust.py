"""What median, trimmed mean, Krum and norm clipping have in common: samples, buffers, settings and a whole round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from polyclinic.components.registry import find_component
from polyclinic.core.errors import PolyclinicError
from polyclinic.methods.expression import parse_method
from site_models import (
    aggregated,
    make,
    models,
    naive_coordinates,
    naive_median,
)
from support import Keeper, Keeping, assert_same, tiny_recipe, tiny_server

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
        ("pathfl+norm_clipping", ["ssa", "cse", "afa", "norm_clipping"]),
        ("fedavg+norm_clipping(norm=2)+median", ["median", "norm_clipping"]),
    ],
)
def test_an_aggregator_replaces_the_methods_own_and_clipping_joins_it(expression: str, parts: list[str]) -> None:
    assert [p.component for p in parse_method(expression).parts] == parts


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("fedavg+median+krum", "median and krum would each aggregate"),
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
