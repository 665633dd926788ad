"""Grey matter lies in the cord."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from phantom_support import assert_sites_scan_the_same_anatomy_differently, first_means
from polyclinic.data.phantoms import DEMOS, VERSION, spine
from polyclinic.data.phantoms.spine import draw


def test_grey_matter_is_a_butterfly_inside_the_cord() -> None:
    for seed in range(20):
        mask = draw(np.random.default_rng(seed), "site-1", (64, 64, 4)).mask
        cord, grey = mask > 0, mask == 2
        eroded = ndimage.binary_erosion(cord, np.ones((3, 3, 1)), border_value=1)
        assert (grey <= eroded).mean() > 0.998
        assert 0.15 < grey.sum() / cord.sum() < 0.5
        for z in range(4):
            assert ndimage.label(cord[..., z])[1] == 1
            assert ndimage.label(grey[..., z], np.ones((3, 3)))[1] == 1


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    assert first_means("spine") == pytest.approx([375.5, 103.7, 907.8, 239.1], rel=0.005)


def test_sites_scan_the_same_anatomy_differently() -> None:
    assert_sites_scan_the_same_anatomy_differently(spine, DEMOS["spine"].size)
