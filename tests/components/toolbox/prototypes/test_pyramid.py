"""The factorised embedding against the dense one: every level upsampled, concatenated, convolved, concatenated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.prototypes.pyramid import Fusion, PyramidView


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    return F.interpolate(maps, size=size, mode="nearest")


def dense_embedding(levels: list[Tensor], fusion: Fusion, grid: tuple[int, ...], context: str) -> Tensor:
    """Eqs. 10-12 as written: ``(pixels, slots * channels)``."""
    slots = []
    for k, linear in enumerate(fusion):
        deeper = levels[k + 1] if context == "adjacent" else levels[-1]
        stacked = torch.cat([levels[k], resized(deeper, tuple(levels[k].shape[2:]))], dim=1)
        slots.append(resized(linear(stacked.movedim(1, -1)).movedim(-1, 1), grid))
    return torch.cat(slots, dim=1).flatten(2).transpose(1, 2).flatten(0, 1)


def pyramid(size: tuple[int, ...], widths: tuple[int, ...], batch: int = 2, seed: int = 0) -> list[Tensor]:
    """Levels as a U-Net gives them: every pooling halves and rounds down."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [tuple(max(1, s // 2**k) for s in size) for k in range(len(widths))]
    return [
        torch.randn(batch, c, *s, generator=generator, dtype=torch.float64).float().requires_grad_()
        for c, s in zip(widths, sizes, strict=True)
    ]


def build(widths: tuple[int, ...], channels: int, context: str) -> Fusion:
    torch.manual_seed(3)
    return Fusion(widths, channels, context)  # type: ignore[arg-type]


CASES = [
    ((16, 16), 1), ((16, 16), 4), ((16, 16), 8), ((32, 16), 2), ((13, 19), 4), ((21, 9), 1), ((17, 30), 2), ((5, 5), 4),
    ((8, 8, 8), 2), ((9, 12, 7), 4), ((2, 2), 4),
]  # fmt: skip


@pytest.mark.parametrize("context", ["adjacent", "deepest"])
@pytest.mark.parametrize(("size", "stride"), CASES)
def test_products_and_norms_and_their_gradients_equal_the_dense_ones(
    size: tuple[int, ...], stride: int, context: str
) -> None:
    widths, channels = (3, 5, 6, 4), 7
    levels, fusion = pyramid(size, widths), build(widths, channels, context)
    labels = torch.randint(0, 3, (2, *size), generator=torch.Generator().manual_seed(1))
    vectors = torch.randn(4, 3 * channels, generator=torch.Generator().manual_seed(2))
    view = PyramidView(levels, fusion, labels, stride)
    grid = tuple(max(1, s // stride) for s in size)
    dense = dense_embedding(levels, fusion, grid, context)
    dots, squares = view.compare(vectors)
    torch.testing.assert_close(dots, dense @ vectors.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares, dense.square().sum(1), rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(dots)
    everything = [*levels, *fusion.parameters()]
    ours = torch.autograd.grad((weight * dots).sum() + (squares.sqrt()).sum(), everything, allow_unused=True)
    theirs = torch.autograd.grad(
        (weight * (dense @ vectors.T)).sum() + dense.norm(dim=1).sum(), everything, allow_unused=True
    )
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("context", ["adjacent", "deepest"])
@pytest.mark.parametrize(("size", "stride"), CASES)
def test_class_sums_equal_the_dense_ones(size: tuple[int, ...], stride: int, context: str) -> None:
    """Fusing and averaging commute, so the paper's order and the released code's give one prototype."""
    widths, channels = (3, 5, 6, 4), 7
    levels, fusion = pyramid(size, widths), build(widths, channels, context)
    labels = torch.randint(0, 3, (2, *size), generator=torch.Generator().manual_seed(1))
    view = PyramidView(levels, fusion, labels, stride)
    grid = tuple(max(1, s // stride) for s in size)
    dense = dense_embedding(levels, fusion, grid, context)
    expected_labels = resized(labels[:, None].float(), grid).long().flatten()
    assert torch.equal(view.labels, expected_labels)
    sums, counts = view.class_sums(4)
    for c in range(4):
        torch.testing.assert_close(sums[c], dense[expected_labels == c].sum(0), rtol=1e-4, atol=1e-4)
        assert counts[c] == (expected_labels == c).sum()
    assert not sums[3].any()


def test_no_tensor_of_the_size_of_the_embedding_is_formed() -> None:
    """The largest thing kept for backward has the channels of a level, not those of the fused slots."""
    widths, channels = (4, 6, 8), 64
    levels, fusion = pyramid((32, 32), widths), build(widths, channels, "adjacent")
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        view = PyramidView(levels, fusion, torch.zeros(2, 32, 32, dtype=torch.long), 1)
        view.compare(torch.randn(3, 2 * channels))
    assert max(sizes) <= 2 * 32 * 32 * max(widths)
    assert max(sizes) < 2 * 32 * 32 * channels
