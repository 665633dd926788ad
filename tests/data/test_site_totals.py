from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from monai.transforms import CenterSpatialCrop

from polyclinic.data.federation import Item
from polyclinic.data.site_totals import (
    MEASURED_WIDTHS,
    SiteTotals,
    intensity_profile,
    middle_of,
    structure_width,
    style_shift,
)

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


def test_labels_are_counted_with_their_images() -> None:
    """Foreground, contrast and width, written out; labels without foreground, or without an image, count as far as
    they can."""
    rng = np.random.default_rng(1)
    totals, shares, contrasts = SiteTotals(), [], []
    for number in range(3):
        image = rng.normal(50, 9, (2, 16, 12)).astype(np.float32)
        label = np.zeros((16, 12), np.uint8)
        label[:, 4 : 6 + 2 * number] = 1 + number % 2
        image[:, label > 0] -= 20
        totals.add(image, None)
        totals.add_label(label, image)
        inside = [float(c[r, k]) for c in image for r in range(16) for k in range(12) if label[r, k]]
        outside = [float(c[r, k]) for c in image for r in range(16) for k in range(12) if not label[r, k]]
        shares.append(len(inside) / (len(inside) + len(outside)))
        contrasts.append((np.mean(inside) - np.mean(outside)) / image.std())
    totals.add_label(np.zeros((16, 12), np.uint8), None)
    row = totals.row("north", items("a", "b", "c", "d", labelled=4), CLASSES)
    assert row.foreground == pytest.approx(sum(shares) / 4)
    assert row.contrast == pytest.approx(np.mean(contrasts), rel=1e-5)
    assert row.width == pytest.approx((2 + 4 + 6) / 3, abs=0.1)
    assert row.classes == CLASSES


def test_a_site_without_labels_has_no_structures() -> None:
    totals = SiteTotals()
    totals.add(np.ones((1, 4, 4), np.float32), None)
    row = totals.row("north", items("a"), CLASSES)
    assert (row.foreground, row.width, row.contrast) == (None,) * 3


@pytest.mark.parametrize(("radius", "wide"), [(6, 8.0), (12, 16.0)])
def test_the_width_of_a_disc_is_four_thirds_of_its_radius(radius: int, wide: float) -> None:
    rows, columns = np.mgrid[:40, :40] - 20
    assert structure_width(np.hypot(rows, columns) <= radius) == pytest.approx(wide, rel=0.08)


def test_a_line_of_single_pixels_is_about_two_wide_whatever_its_length() -> None:
    """Half a pixel to either side is the nearest that distances between pixels can tell."""
    line = np.zeros((9, 30), bool)
    line[4] = True
    assert structure_width(line) == 2.0


def test_widths_are_measured_on_a_few_labels_alone() -> None:
    totals, label = SiteTotals(), np.zeros((4, 4), np.uint8)
    label[1:3, 1:3] = 1
    for _ in range(MEASURED_WIDTHS + 3):
        totals.add_label(label, None)
    assert (len(totals.widths), len(totals.foregrounds)) == (MEASURED_WIDTHS, MEASURED_WIDTHS + 3)


@given(arrays(bool, array_shapes(min_dims=2, max_dims=3, max_side=9), elements=st.booleans()).filter(np.any))
def test_the_middle_is_the_smallest_crop_that_loses_no_foreground(mask: np.ndarray) -> None:
    """Against the crop that preparing does, axis by axis, which cuts an odd rest on either side."""
    middle = middle_of(mask)
    assert all(size <= whole and (whole - size) % 2 == 0 for size, whole in zip(middle, mask.shape, strict=True))
    assert CenterSpatialCrop(middle)(mask[None]).sum() == mask.sum()
    for axis, size in enumerate(middle):
        less = list(middle)
        less[axis] = size - 2
        if size > 2:
            assert CenterSpatialCrop(less)(mask[None]).sum() < mask.sum()


def test_one_label_in_twenty_may_lie_elsewhere() -> None:
    totals = SiteTotals()
    for number in range(40):
        label = np.zeros((20, 30), np.uint8)
        label[9:11, 14:16] = 1
        if number < 2:
            label[0, 0] = 1
        totals.add_label(label, None)
    assert totals.row("north", items(*["a"] * 40, labelled=40), CLASSES).middle == (2, 2)
    label[0, 0] = 1
    totals.add_label(label, None)
    assert totals.row("north", items(*["a"] * 41, labelled=41), CLASSES).middle == (20, 30)
    assert SiteTotals().row("north", items("a"), CLASSES).middle is None


def test_volumes_that_are_cut_into_slices_are_measured_in_slices() -> None:
    """A disc of a single slice is as wide as the disc, and lies in the middle whatever slice it is in."""
    rows, columns = np.mgrid[:32, :36] - np.array([16, 18])[:, None, None]
    label = np.zeros((32, 36, 7), np.uint8)
    label[..., 5] = np.hypot(rows, columns) <= 9
    flat, cut = SiteTotals(), SiteTotals(slice_axis=-1)
    flat.add_label(label, None)
    cut.add_label(label, None)
    assert cut.widths == [structure_width(label[..., 5] > 0)]
    assert flat.widths[0] < cut.widths[0] / 3
    assert cut.row("north", items("a"), CLASSES).middle == (20, 20)
    assert flat.row("north", items("a"), CLASSES).middle == (20, 20, 5)


def site_of(*images: np.ndarray) -> SiteTotals:
    totals = SiteTotals()
    for image in images:
        totals.add(image.astype(np.float32), None)
    return totals


def drawn(seed: int, count: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.gamma(rng.uniform(2, 4), 1, (2, 20, 20)) for _ in range(count)]


def test_shift_is_the_deviation_between_sites_over_that_within() -> None:
    sites = [site_of(*drawn(0)), site_of(*(image**2 for image in drawn(1))), site_of(*(-i for i in drawn(2)))]
    profiles = [[intensity_profile(np.asarray(i, np.float32).astype(float)) for i in own] for own in (
        drawn(0), [image**2 for image in drawn(1)], [-image for image in drawn(2)]
    )]  # fmt: skip
    numbers = range(len(profiles[0][0]))
    means = [[sum(p[n] for p in own) / len(own) for n in numbers] for own in profiles]
    between = sum(np.var([mean[n] for mean in means]) for n in numbers)
    within = sum(np.mean([np.var([p[n] for p in own]) for own in profiles]) for n in numbers)
    shift = style_shift(sites)
    assert shift == pytest.approx((between / within) ** 0.5)
    assert shift > 1


def test_a_scanners_factor_and_offset_are_no_shift() -> None:
    """The same draw at two sites, one of them in other units."""
    same = style_shift([site_of(*drawn(0, 60)), site_of(*(1000 + 50 * image for image in drawn(1, 60)))])
    assert same is not None
    assert same < 0.3


def test_no_shift_is_known_of_one_site_or_of_images_that_are_all_alike() -> None:
    assert style_shift([site_of(*drawn(0))]) is None
    assert style_shift([site_of(*drawn(0)), site_of(*drawn(1, 1))]) is None
    flat = np.ones((1, 4, 4))
    assert style_shift([site_of(flat, flat), site_of(flat, flat)]) is None
