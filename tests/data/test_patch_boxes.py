from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.data.patch_boxes import padded, random_box

AXES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=3)


def nobody_asks() -> list[torch.Tensor]:
    raise AssertionError("the foreground was looked at")


@given(AXES, st.integers(0, 200))
def test_boxes_lie_inside_and_a_share_of_them_on_foreground(axes: list[tuple[int, int]], seed: int) -> None:
    shape, size = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    last = torch.tensor([int(torch.tensor(shape).prod()) - 1])
    for foreground, share in (
        (list, 0.5),
        (lambda: [last.int()], 0.5),
        (lambda: [last.int()], 0.2),
        (nobody_asks, 0.0),
    ):
        generator = torch.Generator().manual_seed(seed)
        box = random_box(shape, size, generator, foreground, share)
        assert [part.stop - part.start for part in box] == list(size)
        assert all(0 <= part.start <= max(n - s, 0) for part, n, s in zip(box, shape, size, strict=True))
        after = torch.rand(1, generator=generator)
        other = torch.Generator().manual_seed(seed)
        draws = torch.rand(len(shape) + 3, generator=other)
        assert torch.equal(after, torch.rand(1, generator=other)), "as many draws wherever it lies"
        if draws[0] < share and foreground():
            assert [part.start for part in box] == [max(n - s, 0) for n, s in axes], (
                "at the far end, where the voxel is"
            )


@given(AXES)
def test_zeros_come_behind(axes: list[tuple[int, int]]) -> None:
    shape, size = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    cut = tuple(slice(0, s) for s in size)
    image, label = torch.ones(2, *shape)[(slice(None), *cut)], torch.ones(shape)[cut]
    pixels, classes = padded(image, label, size)
    assert pixels.shape == (2, *size)
    assert classes.shape == size
    assert torch.equal(pixels[(slice(None), *(slice(0, n) for n in label.shape))], image)
    assert float(pixels.sum()) == float(image.sum())
    assert float(classes.sum()) == float(label.sum())
