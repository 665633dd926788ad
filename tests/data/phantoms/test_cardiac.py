"""The ventricles lie as in a heart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from phantom_support import assert_sites_scan_the_same_anatomy_differently, first_means
from polyclinic.data.phantoms import DEMOS, VERSION, cardiac
from polyclinic.data.phantoms.cardiac import draw


def test_ventricles_lie_as_in_a_heart() -> None:
    for seed in range(20):
        mask = draw(np.random.default_rng(seed), "vendor-a", (64, 64, 4)).mask
        left, wall, right = (mask == number for number in (1, 2, 3))
        assert all(part.any(axis=(0, 1)).all() for part in (left, wall, right))
        # Nothing but myocardium touches the left ventricle.
        around = ndimage.binary_dilation(left, np.ones((3, 3, 1))) & ~left
        assert (mask[around] == 2).all()
        assert left[..., -1].sum() > left[..., 0].sum()
        assert np.argwhere(right)[:, 0].mean() < np.argwhere(left)[:, 0].mean()


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    assert first_means("cardiac") == pytest.approx([347.0, 171.9, 845.7, 59.1], rel=0.005)


def test_sites_scan_the_same_anatomy_differently() -> None:
    assert_sites_scan_the_same_anatomy_differently(cardiac, DEMOS["cardiac"].size)
