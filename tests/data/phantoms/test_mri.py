"""A scanner turns tissues into integers; the field of view is in mm."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.data.phantoms.mri import Style, field_of_view, scan

PLAIN = Style((0.2, 0.8), texture=0.0, shading=0.0, blur=0.0, noise=0.0, spacing=(2.0, 5.0))


def test_the_spacing_of_a_file_keeps_the_field_of_view() -> None:
    for width in (32, 64):
        (x, _, z), spacing = field_of_view((width, width, 4), PLAIN, pixel=1.0, slices=4)
        assert spacing[0] * width == pytest.approx(2.0 * 64)
        assert spacing[2] == pytest.approx(5.0)
        assert np.abs(x).max() == pytest.approx(2 * (1 - 1 / width))  # pixels twice as wide see twice as much
        assert np.abs(z).max() < 1


def test_tissues_get_their_intensity() -> None:
    tissue = np.zeros((16, 16, 2), np.uint8)
    tissue[8:] = 1
    image = scan(np.random.default_rng(0), tissue, PLAIN)
    assert image.dtype == np.int16
    dark, bright = image[:6].mean(), image[10:].mean()
    assert dark == pytest.approx(0.2 * PLAIN.scale, rel=0.2)
    assert bright == pytest.approx(0.8 * PLAIN.scale, rel=0.2)


def test_light_brightens_and_nothing_leaves_the_range_of_a_file() -> None:
    tissue = np.ones((8, 8, 2), np.uint8)
    plain, lit, glaring = (scan(np.random.default_rng(0), tissue, PLAIN, light) for light in (1.0, 2.0, 1e6))
    assert lit.mean() == pytest.approx(2 * plain.mean(), rel=0.01)
    assert glaring.max() == 32000
