"""The prostate is one body in the middle; sites differ in scanner and spacing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from phantom_support import first_image
from polyclinic.data.phantoms import DEMOS, VERSION
from polyclinic.data.phantoms.prostate import STYLES, draw


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    assert first_image("prostate", "hospital-c").image.mean() == pytest.approx(964.9, rel=0.005)


@pytest.mark.parametrize("site", STYLES)
def test_the_prostate_is_one_body_near_the_middle(site: str) -> None:
    drawing = first_image("prostate", site)
    bodies, count = ndimage.label(drawing.mask)
    largest = np.bincount(bodies.ravel())[1:].max()
    assert count >= 1
    assert largest > 0.95 * drawing.mask.sum()
    assert np.abs(np.argwhere(drawing.mask)[:, :2].mean(0) - 32).max() < 12
    assert 0.02 < drawing.mask.mean() < 0.4


def test_the_spacing_follows_the_size() -> None:
    small, large = (draw(np.random.default_rng(0), "hospital-b", size) for size in ((32, 32, 10), (64, 64, 10)))
    assert large.spacing == pytest.approx((1.1, 1.1, 3.3))
    assert small.spacing == pytest.approx((2.2, 2.2, 3.3))


def test_every_site_has_a_scale_of_its_own() -> None:
    assert len({style.scale for style in STYLES.values()}) == len(STYLES) == len(DEMOS["prostate"].cases)
