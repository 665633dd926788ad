"""Tumours vary."""

from __future__ import annotations

import numpy as np
import pytest

from phantom_support import assert_sites_scan_the_same_anatomy_differently, first_means
from polyclinic.data.phantoms import DEMOS, VERSION, bladder
from polyclinic.data.phantoms.bladder import draw


def test_tumours_vary_in_size_and_place() -> None:
    masks = [draw(np.random.default_rng(s), "centre-1", (64, 64, 4)).mask for s in range(40)]
    sizes = [int(mask.sum()) for mask in masks]
    assert min(sizes) > 20
    assert max(sizes) > 5 * min(sizes)
    assert max(sizes) < 0.15 * masks[0].size
    places = np.stack([np.argwhere(mask)[:, :2].mean(0) for mask in masks])
    assert (places.std(0) > 6).all()


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    assert first_means("bladder") == pytest.approx([386.2, 186.3, 426.3, 262.2], rel=0.005)


def test_sites_scan_the_same_anatomy_differently() -> None:
    assert_sites_scan_the_same_anatomy_differently(bladder, DEMOS["bladder"].size)
