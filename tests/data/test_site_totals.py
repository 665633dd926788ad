from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyclinic.data.federation import Item
from polyclinic.data.site_totals import SiteTotals

CLASSES = ("background", "organ", "lesion")


def items(*cases: str, labelled: int = 0) -> tuple[Item, ...]:
    return tuple(
        Item("north", f"x{number}", (Path("x.png"),), Path("y.png") if number < labelled else None, case)
        for number, case in enumerate(cases)
    )


def test_sums_over_images_of_any_size_are_those_of_all_voxels_together() -> None:
    rng = np.random.default_rng(0)
    images = [rng.normal(100, 3, shape).astype(np.float32) for shape in ((2, 5, 9), (2, 7, 4), (2, 6, 6))]
    totals = SiteTotals()
    for image, spacing in zip(images, ((1.0, 2.0), (0.5, 3.0), (0.7, 2.5)), strict=True):
        totals.add(image, spacing)
    row = totals.row("north", items("a", "b", "a", labelled=2), CLASSES)
    voxels = np.concatenate([image.ravel() for image in images]).astype(np.float64)
    assert (row.mean, row.std) == (pytest.approx(voxels.mean()), pytest.approx(voxels.std()))
    assert (row.minimum, row.maximum) == (voxels.min(), voxels.max())
    assert row.sizes == ((5, 4), (7, 9))
    assert row.spacings == ((0.5, 2.0), (1.0, 3.0))
    assert (row.images, row.cases, row.labelled) == (3, 2, 2)


def test_a_site_without_readable_images_has_no_numbers() -> None:
    row = SiteTotals().row("north", items("a", "b"), CLASSES)
    assert (row.mean, row.std, row.minimum, row.maximum, row.sizes, row.spacings) == (None,) * 6
    assert (row.images, row.classes) == (2, ())


def test_rounding_does_not_make_a_variance_negative() -> None:
    assert SiteTotals(count=1, total=1.0, squares=1 - 1e-12).row("north", (), CLASSES).std == 0


def test_flat_images_among_volumes_have_no_common_range_of_sizes() -> None:
    totals = SiteTotals()
    totals.add(np.zeros((1, 4, 5), np.float32), None)
    totals.add(np.zeros((1, 4, 5, 6), np.float32), (1.0, 1.0, 2.0))
    row = totals.row("north", (), CLASSES)
    assert row.sizes is None
    assert row.spacings == ((1.0, 1.0, 2.0),) * 2


def test_classes_have_their_names_in_the_order_of_their_numbers() -> None:
    totals = SiteTotals(classes={2, 0})
    assert totals.row("north", (), CLASSES).classes == ("background", "lesion")
