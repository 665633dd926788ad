from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.prototypes.bank import (
    Prototypes,
    cosines,
    info_nce,
    masked_mean,
    mean_distances,
    mean_over_classes,
)


def some_prototypes(channels: int = 6, seed: int = 0) -> Prototypes:
    """Class 0 has two, class 1 one, class 2 none, class 3 three."""
    vectors = torch.randn(6, channels, generator=torch.Generator().manual_seed(seed))
    return Prototypes(vectors, torch.tensor([0, 0, 1, 3, 3, 3]), 4)


def compared(anchors: torch.Tensor, prototypes: Prototypes) -> tuple[torch.Tensor, torch.Tensor]:
    return anchors @ prototypes.vectors.T, anchors.square().sum(1)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(2, 9), st.floats(0.1, 2.0))
def test_losses_equal_the_equations_written_out(count: int, channels: int, tau: float) -> None:
    prototypes = some_prototypes(channels)
    torch.manual_seed(count)
    anchors = torch.randn(count, channels, requires_grad=True)
    labels = torch.randint(0, 4, (count,))
    dots, squares = compared(anchors, prototypes)
    pulls = info_nce(cosines(dots, squares, prototypes), labels, prototypes, tau)
    distances = mean_distances(dots, squares, labels, prototypes)
    for i in range(count):
        own = [q for q, c in zip(prototypes.vectors, prototypes.classes, strict=True) if c == labels[i]]
        if not own:
            assert pulls[i] == 0
            continue

        def weight(q: torch.Tensor, e: torch.Tensor = anchors[i]) -> torch.Tensor:
            return torch.exp(torch.nn.functional.cosine_similarity(e, q, dim=0) / tau)

        total = torch.stack([weight(q) for q in prototypes.vectors]).sum()
        naive = -torch.log(torch.stack([weight(q) for q in own]).sum() / total)
        mean = torch.stack(own).mean(0)
        torch.testing.assert_close(pulls[i], naive, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(distances[i], (anchors[i] - mean).square().sum(), rtol=1e-4, atol=1e-4)
        (ours,) = torch.autograd.grad(pulls[i], anchors, retain_graph=True)
        (theirs,) = torch.autograd.grad(naive, anchors, retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def two_directions(positive: float, negative: float) -> tuple[torch.Tensor, Prototypes]:
    """An anchor with these cosines to the prototype of its class 1 and to that of class 0."""
    rest = (1 - positive**2 - negative**2) ** 0.5
    anchor = torch.tensor([[negative, positive, rest]], requires_grad=True)
    return anchor, Prototypes(torch.eye(3)[:2], torch.tensor([0, 1]), 2)


def test_contrast_is_alive_at_the_papers_temperature_where_the_released_one_is_dead() -> None:
    """tau = 0.005, cosines 0.3 to the own and 0.9 to the other class: the loss is 120 and pulls with 200 a unit."""
    for form, alive in (("lse", True), ("released", False)):
        anchor, prototypes = two_directions(0.3, 0.9)
        similarities = cosines(*compared(anchor, prototypes), prototypes)
        similarities.retain_grad()
        loss = info_nce(similarities, torch.tensor([1]), prototypes, 0.005, form)  # type: ignore[arg-type]
        loss.sum().backward()
        assert similarities.grad is not None
        if alive:
            torch.testing.assert_close(loss, torch.tensor([120.0]), rtol=1e-4, atol=0)
            torch.testing.assert_close(similarities.grad, torch.tensor([[200.0, -200.0]]))
        else:
            torch.testing.assert_close(loss, torch.tensor([2.0]).log())
            assert not similarities.grad.any()


def test_released_form_is_finite_where_exponentials_underflow() -> None:
    """The authors add 1e-9 to both sums; own cosine -0.6 beside 0.3 gives log((1e6 + 1e-9) / 1e-9)."""
    prototypes = Prototypes(torch.eye(2), torch.tensor([0, 1]), 2)
    similarities = torch.tensor([[0.3, -0.6], [-0.6, -0.6]], requires_grad=True)
    loss = info_nce(similarities, torch.tensor([1, 1]), prototypes, 0.005, "released")
    torch.testing.assert_close(loss, torch.tensor([34.5388, 0.0]), rtol=1e-4, atol=1e-6)
    used = torch.tensor([True, False])
    mean_over_classes(loss, torch.tensor([1, 1]), used, 2).backward()
    assert similarities.grad is not None
    assert similarities.grad.isfinite().all()


def test_released_form_equals_the_other_where_nothing_is_clamped() -> None:
    prototypes, anchors = some_prototypes(), torch.randn(9, 6)
    labels = torch.randint(0, 4, (9,))
    similarities = cosines(*compared(anchors, prototypes), prototypes)
    both = [info_nce(similarities, labels, prototypes, 0.5, form) for form in ("lse", "released")]  # type: ignore[arg-type]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("labels", [[2, 2], [0, 2]])
def test_a_class_without_prototypes_gives_zero_and_finite_gradients(labels: list[int]) -> None:
    prototypes, anchors = some_prototypes(), torch.randn(2, 6, requires_grad=True)
    classes = torch.tensor(labels)
    pulls = info_nce(cosines(*compared(anchors, prototypes), prototypes), classes, prototypes, 0.005)
    assert pulls[classes == 2].eq(0).all()
    pulls.sum().backward()
    assert anchors.grad is not None
    assert anchors.grad.isfinite().all()
    assert not anchors.grad[classes == 2].any()


def test_an_anchor_of_zeros_is_not_pulled() -> None:
    prototypes, anchors = some_prototypes(), torch.zeros(1, 6, requires_grad=True)
    similarities = cosines(*compared(anchors, prototypes), prototypes)
    assert not similarities.any()
    info_nce(similarities, torch.tensor([0]), prototypes, 0.4).sum().backward()
    assert anchors.grad is not None
    assert not anchors.grad.any()


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_masked_mean_equals_a_loop_over_the_pixels_that_are_used(share: float, weight: float) -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(30, generator=generator).requires_grad_()
    used = torch.rand(30, generator=generator) < share
    chosen = [value for value, is_used in zip(values, used.tolist(), strict=True) if is_used]
    naive = weight * sum(chosen) / len(chosen) if chosen else values.sum() * 0
    for mask in (used, used.float()):
        torch.testing.assert_close(masked_mean(values, mask, weight), naive)
    pair = [torch.autograd.grad(mean, values)[0] for mean in (masked_mean(values, used, weight), naive)]
    torch.testing.assert_close(*pair)


def test_mean_over_classes_is_a_mean_of_means() -> None:
    values = torch.tensor([1.0, 3.0, 10.0, 99.0])
    labels, used = torch.tensor([1, 1, 3, 0]), torch.tensor([True, True, True, False])
    assert mean_over_classes(values, labels, used, 4) == (2.0 + 10.0) / 2
    assert mean_over_classes(values, labels, torch.zeros(4, dtype=torch.bool), 4) == 0
    values[3] = torch.inf
    assert mean_over_classes(values, labels, used, 4) == (2.0 + 10.0) / 2


def test_mean_prototype_is_the_unweighted_mean_of_the_clusters() -> None:
    prototypes = some_prototypes()
    torch.testing.assert_close(prototypes.means[3], prototypes.vectors[3:].mean(0))
    torch.testing.assert_close(prototypes.means[1], prototypes.vectors[2])
    assert prototypes.present.tolist() == [True, True, False, True]
    assert not prototypes.means[2].any()


def test_nothing_received_is_none() -> None:
    assert Prototypes.received({}, "encoder", 3, torch.device("cpu")) is None
    empty = Prototypes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 3).tensors("encoder")
    assert Prototypes.received(empty, "encoder", 3, torch.device("cpu")) is None
