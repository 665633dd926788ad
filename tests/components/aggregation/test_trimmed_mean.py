"""The trimmed mean against sorted values, coordinate by coordinate."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from site_models import (
    SHAPES,
    aggregated,
    make,
    models,
    naive_coordinates,
)


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
