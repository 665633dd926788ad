"""A tumour in four channels; old lesions are bright too and in no mask."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from phantom_support import first_image
from polyclinic.data.phantoms import DEMOS, VERSION
from polyclinic.data.phantoms.tumour import STYLES, draw


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    head = first_image("tumour", "hospital-c").image
    assert head.mean(axis=(0, 1, 2)) == pytest.approx([593.4, 581.0, 633.9, 694.7], rel=0.005)


@pytest.mark.parametrize("site", STYLES)
def test_the_tumour_is_one_body_that_some_channel_shows(site: str) -> None:
    drawing = draw(np.random.default_rng(0), site, (32, 32, 32))
    assert (drawing.image.shape, drawing.mask.shape) == ((32, 32, 32, 4), (32, 32, 32))
    bodies, _ = ndimage.label(drawing.mask, np.ones((3, 3, 3)))
    assert np.bincount(bodies.ravel())[1:].max() > 0.9 * drawing.mask.sum()
    inside = drawing.mask > 0
    brain = (drawing.image.min(axis=3) > 0) & ~inside
    contrast = [
        drawing.image[inside, channel].mean() / max(drawing.image[brain, channel].mean(), 1) for channel in range(4)
    ]
    assert max(contrast) > 1.2


def test_tumours_lie_at_different_places() -> None:
    centres = [
        np.argwhere(draw(np.random.default_rng(seed), "hospital-a", (16, 16, 16)).mask).mean(0) for seed in range(8)
    ]
    assert np.std(centres, axis=0).max() > 1


def test_every_site_has_a_scanner_of_its_own() -> None:
    means = [first_image("tumour", site).image.mean(axis=(0, 1, 2)) for site in DEMOS["tumour"].cases]
    assert all(not np.allclose(a, b, rtol=0.05) for i, a in enumerate(means) for b in means[:i])
