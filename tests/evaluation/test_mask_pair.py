from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from polyclinic.evaluation.mask_pair import MaskPair, surface


@pytest.mark.parametrize("shape", [(9, 7), (6, 5, 4), (1, 4)])
def test_the_surface_is_what_erosion_takes_away(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(0).random(shape) < 0.8
    assert np.array_equal(surface(mask), mask & ~binary_erosion(mask))


def test_distances_are_those_of_all_pairs_and_computed_once() -> None:
    rng = np.random.default_rng(1)
    predicted, true = rng.integers(0, 4, (6, 8)), rng.integers(0, 4, (6, 8))
    spacing = np.array([2.0, 0.5])
    pair = MaskPair(predicted, true, [1, 3], 0, 0, 0, spacing)
    assert np.array_equal(pair.predicted, (predicted == 1) | (predicted == 3))
    edges = [np.argwhere(surface(mask)) * spacing for mask in (pair.predicted, pair.true)]
    for found, (source, target) in zip(pair.surface_distances, (edges, edges[::-1]), strict=True):
        naive = [min(np.linalg.norm(here - there) for there in target) for here in source]
        assert sorted(found) == pytest.approx(sorted(naive))
    assert pair.surface_distances is pair.surface_distances
