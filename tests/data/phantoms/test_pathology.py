"""Sixteen sites in the groups of PathFL's table 1, which differ as the paper's do."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from phantom_support import first_image
from polyclinic.data.phantoms import DEMOS, VERSION
from polyclinic.data.phantoms.pathology import draw


def test_pathology_has_the_groups_of_table_1() -> None:
    groups = defaultdict(list)
    for site in DEMOS["pathology"].cases:
        groups[site.split("-")[0]].append(site)
    assert {group: len(sites) for group, sites in groups.items()} == {
        "source": 7, "modality": 3, "organ": 3, "scanner": 3,
    }  # fmt: skip


def test_scanners_see_the_same_tissue_differently() -> None:
    first, *others = (draw(np.random.default_rng(1), f"scanner-{number}", (64, 64)) for number in (1, 2, 3))
    for other in others:
        assert np.array_equal(first.mask, other.mask)
        assert np.abs(first.image.astype(float) - other.image).mean() > 10


def test_tumours_of_organs_differ_in_architecture() -> None:
    outline = {}
    for site in ("organ-colorectum", "organ-pancreas", "organ-stomach"):
        masks = [draw(np.random.default_rng(seed), site, (64, 64)).mask for seed in range(4)]
        outline[site] = np.mean([(np.diff(mask, axis=0) != 0).sum() for mask in masks])
    assert outline["organ-pancreas"] > 1.3 * outline["organ-colorectum"] > 1.1 * 1.3 * outline["organ-stomach"]


@pytest.mark.parametrize("site", DEMOS["pathology"].cases)
def test_only_fluorescence_is_bright_on_dark(site: str) -> None:
    drawing = draw(np.random.default_rng(2), site, (64, 64))
    grey = drawing.image.mean(axis=2)
    bright = grey[drawing.mask > 0].mean() > grey[drawing.mask == 0].mean()
    # A gland is marked with its empty lumen, so it may be brighter than the tissue around it.
    assert bright == (site == "modality-fluorescence") or site in ("source-3", "source-5")


def test_images_of_version_1_look_as_they_did() -> None:
    """Cached demos are found by VERSION: when these numbers change, so must VERSION."""
    sites = ("source-3", "modality-fluorescence", "organ-pancreas", "scanner-3")
    assert VERSION == 1
    means = [first_image("pathology", site).image.mean() for site in sites]
    assert means == pytest.approx([205.3, 67.1, 191.7, 168.9], abs=0.5)
