"""Regions pixel by pixel, and what they are worth as binary masks."""

from __future__ import annotations

import doctest
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.evaluation import regions as module
from polyclinic.evaluation.case_metrics import case_metrics, dice_per_image
from polyclinic.evaluation.regions import region_dice, region_masks, region_metrics

REGIONS = [(1, 2, 3), (1, 3), (3,)]


def naive(pixel: list[float], region: tuple[int, ...]) -> bool:
    total = sum(pixel[c] for c in region)
    return all(total > p or (total == p and c > min(region)) for c, p in enumerate(pixel) if c not in region)


def test_example() -> None:
    assert doctest.testmod(module) == (0, 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_region_is_where_its_sum_beats_every_other_class(seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    shares = torch.randint(0, 4, (2, 4, 5, 3), generator=generator).double()
    if not ties:
        shares = torch.randn(2, 4, 5, 3, generator=generator).double().softmax(1)
    masks, classes = region_masks(shares, REGIONS), shares.argmax(1)
    for image, row, column in product(range(2), range(5), range(3)):
        pixel = shares[image, :, row, column].tolist()
        for number, region in enumerate(REGIONS):
            assert bool(masks[image, number, row, column]) is naive(pixel, region)
    assert torch.equal(masks[:, 2], classes == 3), "a single class is that of the class map"
    assert (masks[:, 0] | ~masks[:, 1]).all(), "the larger region holds the smaller one"
    for number, region in enumerate(REGIONS):
        assert (masks[:, number] | ~torch.isin(classes, torch.tensor(region))).all()


@pytest.mark.parametrize("policy", ["one-if-both-empty", "ignore", "penalise"])
def test_masks_that_are_unions_of_a_class_map_have_the_values_of_the_class_map(policy: str) -> None:
    generator = torch.Generator().manual_seed(2)
    predicted, truth = (torch.randint(0, 4, (4, 6, 5), generator=generator) for _ in range(2))
    truth[0], predicted[1] = 0, 0
    truth[2] = predicted[2] = 0
    masks = torch.stack([torch.isin(predicted, torch.tensor(region)) for region in REGIONS], 1)
    expected = dice_per_image(predicted, truth, 4, policy, REGIONS)  # type: ignore[arg-type]
    torch.testing.assert_close(region_dice(masks, truth, REGIONS, policy), expected, equal_nan=True)  # type: ignore[arg-type]
    metrics = ("dice", "precision", "hd95", "assd")
    for image in range(4):
        ours = region_metrics(masks[image].numpy(), truth[image].numpy(), REGIONS, metrics, (1.0, 2.0), policy)  # type: ignore[arg-type]
        wanted = case_metrics(predicted[image], truth[image], 4, metrics, (1.0, 2.0), policy, regions=REGIONS)  # type: ignore[arg-type]
        for metric in metrics:
            np.testing.assert_allclose(ours[metric], wanted[metric], equal_nan=True)
