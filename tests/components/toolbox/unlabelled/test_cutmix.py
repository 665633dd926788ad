from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.unlabelled.cutmix import draw_beta, draw_boxes, paste


@pytest.mark.parametrize(("first", "second"), [(8, 2), (4, 4), (1, 1)])
def test_numbers_follow_the_beta_distribution(first: int, second: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = np.array([draw_beta(first, second, generator) for _ in range(4000)])
    total = first + second
    assert drawn.mean() == pytest.approx(first / total, abs=0.01)
    assert drawn.var() == pytest.approx(first * second / (total**2 * (total + 1)), rel=0.08)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 4), st.lists(st.integers(1, 19), min_size=2, max_size=3), st.floats(0, 1), st.integers(0, 10**6)
)  # fmt: skip
def test_boxes_lie_around_their_centres(batch: int, spatial: list[int], share: float, seed: int) -> None:
    boxes = draw_boxes(batch, spatial, share, torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    centres = [torch.randint(size // 8, size, (batch, 1), generator=generator)[:, 0] for size in spatial]
    assert boxes.shape == (batch, *spatial)
    wanted = torch.zeros(batch, *spatial, dtype=torch.bool)
    for image in range(batch):
        sides = []
        for size, places in zip(spatial, centres, strict=True):
            length = int(size * share ** (1 / len(spatial)))
            centre = int(places[image])
            sides.append(slice(max(0, centre - length // 2), min(size, centre + length // 2)))
        wanted[(image, *sides)] = True
    assert torch.equal(boxes, wanted)


@pytest.mark.parametrize("dims", [2, 3])
def test_a_box_inside_the_image_has_the_share(dims: int) -> None:
    boxes = draw_boxes(200, [64] * dims, 0.2, torch.Generator().manual_seed(0))
    largest = float(boxes.flatten(1).float().mean(1).max())
    assert largest == pytest.approx(0.2, abs=0.03)


def test_pasting_takes_the_donor_inside_the_box_alone() -> None:
    boxes = torch.zeros(2, 3, 3, dtype=torch.bool)
    boxes[1, :2, 1] = True
    first = torch.ones(2, 4, 3, 3), torch.ones(2, 3, 3, dtype=torch.int64), torch.ones(2, 3, 3)
    second = first[0] * 0, first[1] * 0, first[2] * 0
    images, labels, confidence = paste(boxes, first, second)
    assert images.sum() == 8
    assert (images[1, :, :2, 1] == 1).all()
    assert torch.equal(labels, boxes.long())
    assert torch.equal(confidence, boxes.float())
