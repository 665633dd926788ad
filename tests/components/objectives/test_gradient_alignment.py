from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.gradient_alignment import gradient_loss
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, same_gradients, site_of, step_of
from support import tiny_recipe, tiny_task


def naive(probabilities: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Equations 3 to 7, difference by difference; ``(batch, class, *spatial)``."""
    axes = []
    for axis in range(2, truth.dim()):
        total, count = probabilities.new_zeros(()), 0
        for place in product(*map(range, truth.shape)):
            after = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
            if after[axis] < truth.shape[axis]:
                difference = (truth[after] - truth[place]) - (probabilities[after] - probabilities[place])
                total, count = total + difference**2, count + 1
        if count:
            axes.append(total / count)
    return sum(axes, probabilities.sum() * 0) / max(1, len(axes))


@settings(max_examples=15)
@given(st.integers(1, 2), st.integers(1, 2), st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(0, 10**6))
def test_equations_3_to_7_in_value_and_gradient(batch: int, classes: int, size: list[int], seed: int) -> None:
    """Axes of a single voxel among them."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(batch, classes, *size, generator=generator, dtype=torch.float64).requires_grad_()
    truth = torch.randint(2, (batch, classes, *size), generator=generator).double()
    same_gradients(gradient_loss(probabilities, truth), naive(probabilities, truth), probabilities)


def test_a_mask_that_is_off_by_a_constant_has_the_same_edges() -> None:
    truth = torch.randint(2, (1, 1, 4, 4, 4)).float()
    assert gradient_loss(truth, truth) == 0
    torch.testing.assert_close(gradient_loss(0.3 + truth, truth), torch.tensor(0.0))
    assert gradient_loss(1 - truth, truth) > 0.1


def test_the_term_is_weighted_and_of_the_labelled_images_alone() -> None:
    for dims in (2, 3):
        workspace = build_workspace(tiny_recipe("fedavg+gradient_alignment(omega=0.7)"), tiny_task(dims))
        component, site = component_of(workspace, "gradient_alignment"), site_of(workspace, dims, size=5)
        step = step_of(site, rows=2)
        step.strong = site.data.images.batch(torch.tensor([2]))[0]
        step.output = site.network.features(step.inputs)
        onehot = torch.stack([step.labels == 1, step.labels == 2], 1).float()
        wanted = 0.7 * naive(step.output.logits[:2].softmax(1)[:, 1:], onehot)
        torch.testing.assert_close(component.loss(step), {"gradient_alignment": wanted})
        step.strong, step.images, step.labels = step.images, step.images[:0], step.labels[:0]
        assert component.loss(step) == {}
