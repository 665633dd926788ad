from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.toolbox.segmentation_loss import masked_dice_loss
from polyclinic.components.toolbox.unlabelled.masked_losses import (
    class_quantiles,
    divergence,
    entropy,
    masked_loss,
    quantile,
)

SHAPES = st.tuples(st.integers(1, 3), st.integers(2, 4), st.lists(st.integers(1, 4), min_size=2, max_size=3))


def drawn(batch: int, classes: int, spatial: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and a mask."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, classes, *spatial, generator=generator)
    labels = torch.randint(0, classes, (batch, *spatial), generator=generator)
    return logits, labels, torch.rand(batch, *spatial, generator=generator) < 0.5


def pixels(values: Tensor) -> list[list[float]]:
    return values.double().movedim(1, -1).reshape(-1, values.shape[1]).tolist()


def brute_dice(probabilities: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Pixel by pixel, and only over pixels of the mask; a class without any costs nothing."""
    total = probabilities.new_zeros(())
    for p, y, m in zip(probabilities, labels, mask, strict=True):
        for index, channel in enumerate(p):
            overlap = size = truth = channel.new_zeros(())
            for value, label, inside in zip(channel.flatten(), y.flatten(), m.flatten(), strict=True):
                if inside:
                    hit = float(label == index)
                    overlap, size, truth = overlap + value * hit, size + value, truth + hit
            total = total + 1 - (2 * overlap + 1e-5) / (size + truth + 1e-5)
    return total / (probabilities.shape[0] * probabilities.shape[1])


def brute_cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Kept pixels only, divided by the number of all."""
    total = logits.new_zeros(())
    flat = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    for row, label, inside in zip(flat, labels.flatten(), mask.flatten(), strict=True):
        if inside:
            total = total - torch.log(torch.exp(row)[label] / torch.exp(row).sum())
    return total / labels.numel()


@settings(max_examples=15)
@given(SHAPES, st.integers(0, 999))
def test_entropy_is_the_printed_sum(shape: tuple[int, int, list[int]], seed: int) -> None:
    logits, _, _ = drawn(*shape, seed)
    found = entropy(logits.softmax(1))
    assert found.shape == (shape[0], *shape[2])
    naive = [-sum(p * math.log(p + 1e-8) for p in row) for row in pixels(logits.softmax(1))]
    torch.testing.assert_close(found.flatten(), torch.tensor(naive), rtol=1e-5, atol=1e-6)


def test_entropy_of_sure_and_unsure_pixels_and_of_half_precision() -> None:
    sure, even = torch.tensor([[1.0], [0.0], [0.0]]).T[..., None], torch.full((1, 3, 1), 1 / 3)
    assert entropy(sure).item() == 0  # so that a threshold of 0 keeps what is certain
    assert entropy(even).item() == pytest.approx(math.log(3))
    values = torch.randn(2, 3, 4, 4).softmax(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = entropy(values.bfloat16())
    assert found.dtype == torch.float32
    assert torch.equal(found, entropy(values.bfloat16().float()))
    assert entropy(torch.tensor([[[1.0], [0.0]]]).half()).isfinite().all()  # 1e-8 is 0 in float16


@settings(max_examples=15)
@given(SHAPES, st.integers(0, 999))
def test_divergence_is_the_clipped_sum(shape: tuple[int, int, list[int]], seed: int) -> None:
    p, q = (4 * drawn(*shape, seed + offset)[0] for offset in (0, 1))
    p, q = p.softmax(1), q.softmax(1)
    naive = 0.0
    for a, b in zip(p.double().flatten().tolist(), q.double().flatten().tolist(), strict=True):
        a, b = (min(max(value, 1e-8), 1 - 1e-8) for value in (a, b))
        naive += a * (math.log(a) - math.log(b))
    assert divergence(p, q) == pytest.approx(naive, rel=1e-9)
    assert divergence(p, p) == 0


def test_divergence_is_finite_where_a_class_is_ruled_out_and_not_symmetric() -> None:
    sure, other = torch.tensor([[[1.0], [0.0]]]), torch.tensor([[[0.0], [1.0]]])
    assert divergence(sure, other) == pytest.approx(math.log(1e8), rel=1e-6)
    soft = torch.tensor([[[0.7], [0.3]]])
    assert divergence(sure, soft) != pytest.approx(divergence(soft, sure), rel=0.1)
    assert math.isnan(divergence(sure * math.nan, other))


@pytest.mark.parametrize("level", [0.0, 0.15, 0.3, 0.5, 1.0])
def test_quantile_interpolates_between_sorted_values(level: float) -> None:
    values = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    ordered = sorted(values.flatten().tolist())
    place = level * (len(ordered) - 1)
    low, share = int(place), place - int(place)
    naive = ordered[low] + share * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])
    assert quantile(values, level).item() == pytest.approx(naive, abs=1e-6)


@given(st.integers(1, 4), st.integers(0, 10_000), st.floats(0, 1))
def test_quantiles_of_classes_are_those_of_their_own_values(classes: int, seed: int, level: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, labels = torch.rand(2, 3, 4, generator=generator), torch.randint(0, classes, (2, 3, 4), generator=generator)
    found = class_quantiles(values, labels, classes + 1, level)
    assert found[-1].isnan(), "a class that no pixel has"
    for c in range(classes):
        own = values[labels == c]
        assert found[c].isnan() if not len(own) else found[c] == pytest.approx(float(quantile(own, level)), abs=1e-6)


def test_quantiles_of_classes_of_more_values_than_can_be_sorted() -> None:
    """Evenly spread ones stand for all."""
    values, labels = torch.arange(1000.0), torch.arange(1000) // 500
    assert class_quantiles(values, labels, 2, 0.5, most=200).tolist() == pytest.approx([249.5, 749.5], abs=6)


def test_quantile_of_more_values_than_can_be_sorted() -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(quantile(values, 0.3, most=1000), torch.quantile(values, 0.3))
    assert torch.equal(quantile(values, 0.3, most=999), torch.quantile(values[::2], 0.3))
    assert torch.equal(quantile(values, 0.3, most=300), torch.quantile(values[::4], 0.3))
    many = torch.arange(2**24 + 2).float()  # one more than torch takes
    assert quantile(many, 0.5).item() == pytest.approx(2**23, rel=1e-5)


# ---- masked losses ---------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(SHAPES, st.integers(0, 999), st.booleans())
def test_masked_loss_equals_brute_force_with_its_gradient(
    shape: tuple[int, int, list[int]], seed: int, dice: bool
) -> None:
    logits, labels, mask = drawn(*shape, seed)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss = masked_loss(ours, labels, mask, dice)
    naive = brute_cross_entropy(theirs, labels, mask)
    if dice:
        naive = naive + brute_dice(theirs.softmax(1), labels, mask)
    torch.testing.assert_close(loss.double(), naive, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(naive, theirs, allow_unused=True)[0] if naive.requires_grad else None
    found = torch.autograd.grad(loss, ours)[0]
    wanted = torch.zeros_like(theirs) if wanted is None else wanted
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-5)


@settings(max_examples=15)
@given(SHAPES, st.integers(0, 999))
def test_masked_dice_equals_brute_force(shape: tuple[int, int, list[int]], seed: int) -> None:
    logits, labels, mask = drawn(*shape, seed)
    onehot = torch.stack([labels == index for index in range(shape[1])], 1).float()
    found = masked_dice_loss(logits.softmax(1), onehot, mask.unsqueeze(1))
    torch.testing.assert_close(found, brute_dice(logits.softmax(1), labels, mask), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 2, 3, 4, 2)])
def test_an_empty_mask_costs_nothing_and_teaches_nothing(shape: tuple[int, ...]) -> None:
    logits = (5 * torch.randn(shape)).requires_grad_()
    labels, nothing = torch.zeros(shape[0], *shape[2:], dtype=torch.long), torch.zeros(shape[0], *shape[2:])
    losses = [
        masked_loss(logits, labels, nothing.bool()),
        masked_dice_loss(logits.softmax(1), torch.zeros(shape), nothing.unsqueeze(1)),
    ]
    for loss in losses:
        assert loss.item() == 0
        assert loss.requires_grad  # a step whose only term this is has a backward pass
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert torch.equal(gradient, torch.zeros(shape))


def test_what_is_masked_has_no_influence_on_the_rest() -> None:
    """Masked logits, as in the faulty library, would re-enter with a probability of one over the classes."""
    logits, labels, mask = drawn(2, 3, [5, 5], 0)
    changed = torch.where(mask.unsqueeze(1), logits, torch.randn_like(logits) * 7)
    relabelled = labels.where(mask, (labels + 1) % 3)
    first, second = masked_loss(logits, labels, mask), masked_loss(changed, relabelled, mask)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_half_precision_is_computed_in_float32() -> None:
    logits, labels, mask = drawn(1, 2, [300, 250], 0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = masked_loss(logits.half(), labels, mask)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, masked_loss(logits.half().float(), labels, mask))
