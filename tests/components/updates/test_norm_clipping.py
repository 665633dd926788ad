"""Norm clipping against norms summed number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from site_models import (
    BUFFERS,
    SHAPES,
    make,
    models,
    naive_median,
    server_round,
    updates_of,
)
from support import assert_same


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
