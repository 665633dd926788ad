"""The median against sorted values, coordinate by coordinate."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from site_models import (
    SHAPES,
    aggregated,
    make,
    models,
    naive_coordinates,
    naive_median,
)


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
