"""Pixels of a map, one by one."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.prototypes.views import MapView


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7))
def test_a_single_map_is_compared_pixel_by_pixel(batch: int, channels: int, height: int, width: int) -> None:
    features = torch.randn(batch, channels, height, width)
    labels = torch.randint(0, 3, (batch, 2 * height, 2 * width))
    view = MapView(features, labels)
    vectors = torch.randn(4, channels)
    dots, squares = view.compare(vectors)
    rows = [features[b, :, i, j] for b in range(batch) for i in range(height) for j in range(width)]
    torch.testing.assert_close(dots, torch.stack([vectors @ row for row in rows]))
    torch.testing.assert_close(squares, torch.stack([row @ row for row in rows]))
    sums, counts = view.class_sums(3)
    for c in range(3):
        own = [row for row, label in zip(rows, view.labels.tolist(), strict=True) if label == c]
        torch.testing.assert_close(sums[c], torch.stack(own).sum(0) if own else torch.zeros(channels))
        assert counts[c] == len(own)
