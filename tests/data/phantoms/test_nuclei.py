"""Nuclei are dark blobs; sites differ in their stain."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from phantom_support import first_image
from polyclinic.data.phantoms import VERSION
from polyclinic.data.phantoms.nuclei import STYLES, draw


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    assert VERSION == 1
    picture = first_image("nuclei", "hospital-b").image
    assert picture.mean(axis=(0, 1)) == pytest.approx([142.5, 104.2, 164.5], abs=0.5)


@pytest.mark.parametrize("site", STYLES)
def test_nuclei_are_darker_than_the_tissue_around_them(site: str) -> None:
    drawing = draw(np.random.default_rng(0), site, (64, 64))
    grey = drawing.image.mean(axis=2)
    assert (drawing.image.shape, drawing.image.dtype, drawing.mask.shape) == ((64, 64, 3), np.uint8, (64, 64))
    assert grey[drawing.mask == 1].mean() < grey[drawing.mask == 0].mean() - 10
    assert ndimage.label(drawing.mask)[1] >= 3


def test_sites_stain_differently() -> None:
    colours = [first_image("nuclei", site).image.mean(axis=(0, 1)) for site in STYLES]
    assert all(np.abs(a - b).max() > 10 for i, a in enumerate(colours) for b in colours[:i])
