"""Drawn pixels are different, equally likely, and numbered image by image."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.pixels import draw_distinct, rows_of_pixels


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5000), st.integers(2, 40), st.integers(0, 10**6))
def test_drawn_pixels_are_different_and_in_range(total: int, wanted: int, seed: int) -> None:
    first, again = (draw_distinct(total, wanted, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(first, again)
    assert len(first) == len(set(first.tolist())) == min(total, wanted)
    assert 0 <= int(first.min()) <= int(first.max()) < total


@pytest.mark.parametrize("total", [40, 100 * 20])
def test_every_pixel_is_equally_likely(total: int) -> None:
    """Below and above the size from which there is no permutation; four standard errors."""
    generator, wanted, times = torch.Generator().manual_seed(3), 20, 2000
    draws = torch.cat([draw_distinct(total, wanted, generator) for _ in range(times)])
    share = torch.bincount(draws * 10 // total, minlength=10) / (times * wanted)
    assert (share - 0.1).abs().max() < 4 * math.sqrt(0.09 / (times * wanted))


@pytest.mark.parametrize("dims", [2, 3])
def test_pixels_are_numbered_image_by_image(dims: int) -> None:
    maps = torch.randn(2, 3, *[4, 5, 2][:dims], dtype=torch.float64)
    rows = [maps[(b, slice(None), *place)] for b in range(2) for place in indices_of(maps.shape[2:])]
    pixels = torch.randperm(len(rows))[:7]
    torch.testing.assert_close(rows_of_pixels(maps, pixels).double(), torch.stack(rows)[pixels])


def indices_of(shape: torch.Size) -> list[tuple[int, ...]]:
    return [tuple(int(i) for i in row) for row in torch.ones(shape).nonzero()]
