"""The first image of a site of an embedded federation, without writing any file."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import ModuleType

import numpy as np
import pytest

from polyclinic.core.seeds import seed_for
from polyclinic.data.phantoms import DEMOS
from polyclinic.data.phantoms.drawing import Drawing


@cache
def first_image(name: str, site: str) -> Drawing:
    """What ``write_demo`` writes as the first image of a site; tests/data/phantoms/test_demo_files.py compares them."""
    return DEMOS[name].draw(np.random.default_rng(seed_for(0, name, site, 1, 1)), site, DEMOS[name].size)


def first_means(name: str) -> list[float]:
    """The mean of the first image of every site."""
    return [float(first_image(name, site).image.mean(dtype=float)) for site in sorted(DEMOS[name].cases)]


def assert_sites_scan_the_same_anatomy_differently(module: ModuleType, size: tuple[int, ...]) -> None:
    """Pixels of one width at all sites: what is left of the difference is the scanner alone."""
    drawings = []
    for style in module.STYLES.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(module.STYLES, "here", dataclasses.replace(style, spacing=(module.PIXEL, 5.0)))
            drawings.append(module.draw(np.random.default_rng(1), "here", size))
    assert all(np.array_equal(drawings[0].mask, other.mask) for other in drawings)
    ranked = [np.argsort(np.argsort(drawing.image.ravel())) for drawing in drawings]
    correlations = [np.corrcoef(a, b)[0, 1] for i, a in enumerate(ranked) for b in ranked[:i]]
    assert np.mean(correlations) < 0.85
    assert len({tuple(np.argsort(style.intensities)) for style in module.STYLES.values()}) == 4
