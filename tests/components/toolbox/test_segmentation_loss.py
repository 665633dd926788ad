from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses import DiceCELoss, DiceLoss
from torch import Tensor

from polyclinic.components.toolbox import segmentation_loss as objective
from polyclinic.components.toolbox.segmentation_loss import masked_dice_loss, segmentation_loss, soft_label_loss

SMOOTH = 1e-5


def naive_dice(probabilities: Tensor, onehot: Tensor, mask: Tensor) -> list[list[float]]:
    losses = []
    for sample in range(probabilities.shape[0]):
        losses.append([])
        for index in range(probabilities.shape[1]):
            inside = mask[sample, index if mask.shape[1] > 1 else 0].bool()
            p, t = probabilities[sample, index][inside].double(), onehot[sample, index][inside].double()
            losses[-1].append(1 - (2 * (p * t).sum().item() + SMOOTH) / (p.sum().item() + t.sum().item() + SMOOTH))
    return losses


def naive_cross_entropy(logits: Tensor, labels: Tensor) -> float:
    flat, total = logits.movedim(1, -1).reshape(-1, logits.shape[1]).double(), 0.0
    for row, label in zip(flat, labels.flatten().tolist(), strict=True):
        total -= (row[label] - torch.logsumexp(row, 0)).item()
    return total / len(flat)


def onehot_of(labels: Tensor, classes: int) -> Tensor:
    return torch.stack([labels == index for index in range(classes)], dim=1).float()


def test_example() -> None:
    result = doctest.testmod(objective)
    assert result.attempted
    assert not result.failed


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    batch=st.integers(1, 3),
    classes=st.integers(2, 4),
    seed=st.integers(0, 1000),
)
def test_dice_ce_equals_monai_with_its_gradient(sizes: list[int], batch: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours = (3 * torch.randn(batch, classes, *sizes, generator=generator)).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    labels = torch.randint(0, classes, (batch, *sizes), generator=generator)
    loss = segmentation_loss(ours, labels)
    expected = DiceCELoss(to_onehot_y=True, softmax=True)(theirs, labels.unsqueeze(1))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("dice_classes", ["all", "foreground"])
@pytest.mark.parametrize("dice_over", ["image", "batch"])
def test_dice_over_classes_and_pixels_equals_the_naive_formula_and_monai(dice_classes: str, dice_over: str) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = (2 * torch.randn(3, 4, 5, 6, generator=generator)).requires_grad_()
    labels = torch.randint(0, 3, (3, 5, 6), generator=generator)  # class 3 is absent, class 2 in two images only
    labels[0] = labels[0].clamp_max(1)
    losses: dict[int, list[float]] = {}
    probabilities = logits.detach().double().softmax(1)
    for index in range(dice_classes == "foreground", 4):
        images = [[0, 1, 2]] if dice_over == "batch" else [[0], [1], [2]]
        for chosen in images:
            p, t = probabilities[chosen, index], (labels[chosen] == index).double()
            dice = (2 * (p * t).sum().item() + SMOOTH) / (p.sum().item() + t.sum().item() + SMOOTH)
            losses.setdefault(index, []).append(1 - dice)
    means = {index: sum(values) / len(values) for index, values in losses.items()}
    options = {"kind": "dice", "dice_classes": dice_classes, "dice_over": dice_over}
    counted = segmentation_loss(logits, labels, absent_classes="count", **options)  # type: ignore[arg-type]
    ignored = segmentation_loss(logits, labels, absent_classes="ignore", **options)  # type: ignore[arg-type]
    assert counted.item() == pytest.approx(sum(means.values()) / len(means), abs=1e-5)
    del means[3]
    assert ignored.item() == pytest.approx(sum(means.values()) / len(means), abs=1e-5)
    theirs = logits.detach().clone().requires_grad_()
    monai = DiceLoss(
        to_onehot_y=True, softmax=True, include_background=dice_classes == "all", batch=dice_over == "batch"
    )(theirs, labels.unsqueeze(1))
    counted.backward()
    monai.backward()
    torch.testing.assert_close(counted, monai, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_a_batch_of_background_has_no_dice_loss_where_absent_classes_are_ignored() -> None:
    logits, labels = torch.randn(2, 3, 4, 4, requires_grad=True), torch.zeros(2, 4, 4, dtype=torch.int64)
    loss = segmentation_loss(logits, labels, "dice", "ignore", "foreground")
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()
    assert segmentation_loss(logits, labels, "dice", "count", "foreground").item() > 0.9


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 2, 3, 4)])
def test_every_kind_equals_the_naive_formula(shape: tuple[int, ...]) -> None:
    logits, labels = 2 * torch.randn(shape), torch.randint(0, shape[1], (shape[0], *shape[2:]))
    everywhere = torch.ones(shape[0], 1, *shape[2:])
    naive = naive_dice(logits.softmax(1), onehot_of(labels, shape[1]), everywhere)
    dice, entropy = torch.tensor(naive).mean().item(), naive_cross_entropy(logits, labels)
    expected = {"dice": dice, "ce": entropy, "dice-ce": dice + entropy, "dice-ce-mean": (dice + entropy) / 2}
    for kind, value in expected.items():
        assert segmentation_loss(logits, labels, kind).item() == pytest.approx(value, abs=1e-5)


def test_ignored_absent_classes_leave_the_dice_mean_for_the_whole_batch() -> None:
    logits = torch.randn(2, 4, 5, 5, requires_grad=True)
    labels = torch.zeros(2, 5, 5, dtype=torch.int64)
    labels[0, 2:] = 2  # class 2 is in one sample only, classes 1 and 3 in none
    naive = naive_dice(logits.softmax(1).detach(), onehot_of(labels, 4), torch.ones(2, 1, 5, 5))
    present = torch.tensor(naive)[:, [0, 2]].mean().item()
    loss = segmentation_loss(logits, labels, "dice", "ignore")
    assert loss.item() == pytest.approx(present, abs=1e-5)
    assert segmentation_loss(logits, labels, "dice", "count").item() != pytest.approx(present, abs=1e-2)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_no_absent_class_makes_both_policies_equal() -> None:
    logits, labels = torch.randn(1, 3, 4, 4), torch.arange(16).view(1, 4, 4) % 3
    counted, ignored = (segmentation_loss(logits, labels, absent_classes=policy) for policy in ("count", "ignore"))
    torch.testing.assert_close(counted, ignored)


@pytest.mark.parametrize("kind", ["dice-ce", "dice-ce-mean", "ce", "dice"])
def test_extreme_logits_stay_finite(kind: str) -> None:
    logits = torch.tensor([1e4, -1e4]).repeat(8).view(1, 2, 2, 4).requires_grad_()
    loss = segmentation_loss(logits, torch.ones(1, 2, 4, dtype=torch.int64), kind, "ignore")
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_perfect_prediction_costs_nothing() -> None:
    labels = torch.randint(0, 3, (2, 6, 6))
    assert segmentation_loss(200 * onehot_of(labels, 3) - 100, labels).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    # 70 000 voxels: a half precision sum would overflow at 65 504.
    logits, labels = torch.randn(1, 2, 280, 250).to(dtype), torch.randint(0, 2, (1, 280, 250))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = segmentation_loss(logits, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, segmentation_loss(logits.float(), labels), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mask_classes", [1, 3])
@pytest.mark.parametrize("sizes", [(4, 5), (2, 3, 4)])
def test_masked_dice_equals_brute_force(mask_classes: int, sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    probabilities = torch.randn(2, 3, *sizes, generator=generator).softmax(1)
    onehot = onehot_of(torch.randint(0, 3, (2, *sizes), generator=generator), 3)
    mask = torch.rand(2, mask_classes, *sizes, generator=generator) < 0.4
    expected = torch.tensor(naive_dice(probabilities, onehot, mask)).mean().item()
    assert masked_dice_loss(probabilities, onehot, mask).item() == pytest.approx(expected, abs=1e-5)
    assert masked_dice_loss(probabilities, onehot, mask.float()).item() == pytest.approx(expected, abs=1e-5)


def test_masked_dice_has_gradient_inside_the_mask_only() -> None:
    probabilities = torch.rand(1, 2, 4, 4, requires_grad=True)
    onehot, mask = onehot_of(torch.randint(0, 2, (1, 4, 4)), 2), torch.zeros(1, 1, 4, 4)
    mask[..., :2] = 1
    masked_dice_loss(probabilities, onehot, mask).backward()
    assert probabilities.grad is not None
    assert (probabilities.grad[..., :2] != 0).all()
    assert (probabilities.grad[..., 2:] == 0).all()


def test_all_masked_costs_nothing_and_has_no_gradient() -> None:
    probabilities = torch.rand(2, 2, 3, 3, requires_grad=True)
    loss = masked_dice_loss(probabilities, torch.ones(2, 2, 3, 3), torch.zeros(2, 1, 3, 3))
    loss.backward()
    assert loss.item() == 0
    assert probabilities.grad is not None
    assert (probabilities.grad == 0).all()


def test_masked_dice_of_half_precision_is_float32() -> None:
    probabilities = torch.full((1, 2, 300, 300), 0.5, dtype=torch.float16)
    onehot = onehot_of(torch.zeros(1, 300, 300, dtype=torch.int64), 2).half()
    loss = masked_dice_loss(probabilities, onehot, torch.ones(1, 1, 300, 300))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx((1 - 2 * 0.5 / 1.5 + 1) / 2, abs=1e-5)


@pytest.mark.parametrize("absent", ["count", "ignore"])
@pytest.mark.parametrize("kind", ["dice-ce", "dice-ce-mean", "ce", "dice"])
def test_shares_of_classes_that_are_labels_give_the_same_loss(kind: str, absent: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, 3, generator=generator)
    labels = torch.randint(3, (2, 5, 3), generator=generator)
    for over in ({}, {"dice_classes": "foreground", "dice_over": "batch"}):
        wanted = segmentation_loss(logits, labels, kind, absent, **over)  # type: ignore[arg-type]
        ours = soft_label_loss(logits, onehot_of(labels, 4), kind, absent, **over)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, wanted)


def test_soft_cross_entropy_is_linear_in_the_shares_and_one_map_serves_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator)
    first, second = (torch.randint(3, (1, 4), generator=generator) for _ in range(2))
    shares = 0.25 * onehot_of(first, 3) + 0.75 * onehot_of(second, 3)
    wanted = sum(
        share * naive_cross_entropy(logits, labels.expand(2, 4)) for share, labels in ((0.25, first), (0.75, second))
    )
    assert soft_label_loss(logits, shares, "ce").item() == pytest.approx(wanted, rel=1e-5)
