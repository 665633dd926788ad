from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance
from numpy.typing import NDArray
from scipy import ndimage

from polyclinic.evaluation import case_metrics as module
from polyclinic.evaluation.case_metrics import case_metrics, dice_per_image

OVERLAPS = ("dice", "iou", "precision", "sensitivity")
DISTANCES = ("hd95", "asd", "assd")
ALL = OVERLAPS + DISTANCES
Mask = NDArray[np.bool_]


def reference(prediction: Mask, truth: Mask, spacing: tuple[float, ...]) -> dict[str, float]:
    """An independent form for masks that are not empty: distance transforms of the whole image."""
    surfaces = [mask & ~ndimage.binary_erosion(mask) for mask in (prediction, truth)]
    maps = [ndimage.distance_transform_edt(~surface, sampling=spacing) for surface in surfaces]
    outward, inward = maps[1][surfaces[0]], maps[0][surfaces[1]]
    hits = (prediction & truth).sum()
    return {
        "dice": 2 * hits / (prediction.sum() + truth.sum()),
        "iou": hits / (prediction | truth).sum(),
        "precision": hits / prediction.sum(),
        "sensitivity": hits / truth.sum(),
        "hd95": max(np.quantile(outward, 0.95), np.quantile(inward, 0.95)),
        "asd": outward.sum() / outward.size,
        "assd": (outward.sum() + inward.sum()) / (outward.size + inward.size),
    }


def blobs(shape: tuple[int, ...], seed: int, smoothness: float = 2.0, level: float = 0.3) -> Mask:
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).standard_normal(shape), smoothness)
    mask: Mask = noise > level * noise.std()
    return mask


def check(prediction: Mask, truth: Mask, spacing: tuple[float, ...] | None) -> None:
    found = case_metrics(prediction.astype(np.uint8), truth.astype(np.uint8), 2, ALL, spacing)
    expected = reference(prediction, truth, spacing or (1.0,) * truth.ndim)
    assert {metric: values[0] for metric, values in found.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("shape", "spacing"),
    [((30, 41), None), ((30, 41), (0.7, 2.5)), ((12, 15, 18), None), ((12, 15, 18), (3.0, 0.8, 1.1))],
)
def test_equals_distance_transforms(shape: tuple[int, ...], spacing: tuple[float, ...] | None) -> None:
    # The blobs touch the border of the image.
    check(blobs(shape, 1), blobs(shape, 2), spacing)
    check(blobs(shape, 3), blobs(shape, 3, level=0.5), spacing)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=3),
    density=st.floats(0.05, 1),
    seed=st.integers(0, 10_000),
    steps=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.3]), min_size=3, max_size=3),
)
def test_equals_distance_transforms_on_any_masks(
    sizes: list[int], density: float, seed: int, steps: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    prediction, truth = (rng.random(sizes) < density for _ in range(2))
    prediction.flat[0] = truth.flat[-1] = True
    check(prediction, truth, tuple(steps[: len(sizes)]))


@pytest.mark.parametrize("spacing", [None, (2.0, 0.5)])
def test_agrees_with_monai(spacing: tuple[float, float] | None) -> None:
    prediction, truth = blobs((40, 50), 5), blobs((40, 50), 6)
    ours = case_metrics(prediction.astype(int), truth.astype(int), 2, DISTANCES, spacing)
    pair = [torch.from_numpy(np.stack([~mask, mask])[None].astype(np.float32)) for mask in (prediction, truth)]
    steps = None if spacing is None else list(spacing)
    monai = {
        "hd95": compute_hausdorff_distance(*pair, percentile=95, spacing=steps),
        "asd": compute_average_surface_distance(*pair, spacing=steps),
        "assd": compute_average_surface_distance(*pair, symmetric=True, spacing=steps),
    }
    for metric, value in monai.items():
        assert ours[metric][0] == pytest.approx(value.item(), rel=1e-5)


def test_single_voxels_identical_masks_and_a_full_image() -> None:
    truth, prediction = np.zeros((5, 6), int), np.zeros((5, 6), int)
    truth[0, 0] = prediction[3, 4] = 1
    apart = case_metrics(prediction, truth, 2, ALL)
    assert [apart[metric] for metric in DISTANCES] == [[5.0]] * 3
    assert [apart[metric] for metric in OVERLAPS] == [[0.0]] * 4
    for mask in (truth, np.ones((4, 4, 4), int)):
        same = case_metrics(mask, mask, 2, ALL)
        assert [same[metric] for metric in ALL] == [[1.0]] * 4 + [[0.0]] * 3


@pytest.mark.parametrize(
    ("policy", "both", "truth_empty", "prediction_empty"),
    [
        ("one-if-both-empty", (1.0, 0.0), (0.0, "penalty"), (0.0, "penalty")),
        ("ignore", (math.nan, math.nan), (math.nan, math.nan), (0.0, math.nan)),
        ("penalise", (0.0, "penalty"), (0.0, "penalty"), (0.0, "penalty")),
    ],
)
@pytest.mark.parametrize(("penalty", "length"), [("diagonal", math.hypot(4 * 3, 8 * 2)), (7.5, 7.5)])
def test_every_policy_for_empty_masks(
    policy: Any, both: Any, truth_empty: Any, prediction_empty: Any, penalty: Any, length: float
) -> None:
    empty, full = np.zeros((4, 8), int), np.ones((4, 8), int)
    for prediction, truth, (overlap, distance) in (
        (empty, empty, both),
        (full, empty, truth_empty),
        (empty, full, prediction_empty),
    ):
        found = case_metrics(prediction, truth, 2, ALL, (3.0, 2.0), policy, penalty)
        expected = length if distance == "penalty" else distance
        assert [found[metric][0] for metric in OVERLAPS] == pytest.approx([overlap] * 4, nan_ok=True)
        assert [found[metric][0] for metric in DISTANCES] == pytest.approx([expected] * 3, nan_ok=True)


def test_classes_are_measured_one_by_one_and_only_what_is_asked() -> None:
    rng = np.random.default_rng(0)
    prediction, truth = rng.integers(0, 4, (2, 12, 9), dtype=np.uint8)
    found = case_metrics(prediction, truth, 4, ("assd", "iou"), (1.0, 2.0))
    assert list(found) == ["assd", "iou"]
    for index in (1, 2, 3):
        expected = reference(prediction == index, truth == index, (1.0, 2.0))
        assert found["assd"][index - 1] == pytest.approx(expected["assd"])
        assert found["iou"][index - 1] == pytest.approx(expected["iou"])


def test_many_classes_in_small_integers_do_not_overflow() -> None:
    labels = np.arange(200, dtype=np.uint8).reshape(10, 20)
    assert case_metrics(labels, labels, 200, ("dice",))["dice"] == [1.0] * 199


@pytest.mark.parametrize("policy", ["one-if-both-empty", "ignore", "penalise"])
@pytest.mark.parametrize("sizes", [(6, 7), (3, 4, 5)])
def test_batched_dice_equals_case_metrics(policy: Any, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    predictions, labels = torch.randint(0, 3, (2, 5, *sizes), generator=generator)
    labels[0], predictions[1] = 0, 0  # no truth; no prediction
    labels[2], predictions[2] = 1, 1  # class 2 in neither
    found = dice_per_image(predictions, labels.to(torch.uint8), 3, policy)
    expected = [
        case_metrics(prediction, truth, 3, ("dice",), None, policy)["dice"]
        for prediction, truth in zip(predictions, labels, strict=True)
    ]
    assert found.shape == (5, 2)
    np.testing.assert_array_equal(found.numpy(), np.array(expected))


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        case_metrics(np.zeros((2, 3), int), np.zeros((3, 2), int), 2, ("dice",))
    with pytest.raises(ValueError, match="0 to 1, got 0 to 2"):
        case_metrics(np.full((2, 2), 2), np.zeros((2, 2), int), 2, ("dice",))
    with pytest.raises(ValueError, match="0 to 1, got -1 to 0"):
        dice_per_image(torch.zeros(1, 2, 2, dtype=torch.int64), torch.full((1, 2, 2), -1), 2)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), empty=st.sampled_from(("one-if-both-empty", "ignore", "penalise")))
def test_a_region_is_measured_as_the_mask_of_its_classes(seed: int, empty: module.EmptyMasks) -> None:
    rng = np.random.default_rng(seed)
    prediction, truth = (rng.choice(4, (3, 9, 8), p=rng.dirichlet(np.full(4, 0.3))) for _ in range(2))
    regions = ((1, 3), (2,), (1, 2, 3))
    quick = dice_per_image(torch.tensor(prediction), torch.tensor(truth), 4, empty, regions)
    for image in range(3):
        found = case_metrics(prediction[image], truth[image], 4, ALL, None, empty, regions=regions)
        for number, region in enumerate(regions):
            masks = [np.isin(labels[image], region).astype(int) for labels in (prediction, truth)]
            alone = case_metrics(*masks, 2, ALL, None, empty)
            for metric in ALL:
                assert found[metric][number] == pytest.approx(alone[metric][0], nan_ok=True)
            assert float(quick[image, number]) == pytest.approx(alone["dice"][0], nan_ok=True)
