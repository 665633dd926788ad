"""Resampling by index against PyTorch and against the index itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.toolbox.prototypes.grids import Lift, resize_labels


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    return F.interpolate(maps, size=size, mode="nearest")


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_lift_shows_and_gathers_back_what_its_index_says(source: int, middle: int, target: int) -> None:
    lift = Lift.between((source,), (middle,)).then(Lift.between((middle,), (target,)))
    index = torch.tensor([(i * middle // target) * source // middle for i in range(target)])
    maps = torch.arange(2.0 * source).reshape(1, 2, source)
    assert torch.equal(lift(maps), maps[:, :, index])
    back = lift.gather_back(torch.ones(1, 1, target))
    assert torch.equal(back[0, 0], torch.bincount(index, minlength=source).float())


def test_lift_is_pytorchs_nearest_when_sizes_divide() -> None:
    maps = torch.rand(1, 2, 6, 4)
    for size in ((3, 2), (12, 8), (6, 4), (2, 8)):
        assert torch.equal(Lift.between((6, 4), size)(maps), resized(maps, size))
    assert torch.equal(resize_labels(maps[:, 0], (3, 2)), maps[:, 0, ::2, ::2])
