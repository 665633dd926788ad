from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.focal_tversky import focal_tversky_losses
from polyclinic.components.objectives.volume_dice import dice_losses
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, same_gradients, site_of, step_of
from support import tiny_recipe, tiny_task

PAPER = (0.7, 0.3, 4 / 3)


def naive(probabilities: torch.Tensor, truth: torch.Tensor, alpha: float, beta: float, gamma: float) -> torch.Tensor:
    """Equations 1 and 2, voxel by voxel, the mean over images and classes."""
    terms = []
    for p, y in zip(probabilities.flatten(0, 1), truth.flatten(0, 1), strict=True):
        hits, missed, false = (p.new_zeros(()) for _ in range(3))
        for place in product(*map(range, p.shape)):
            hits = hits + y[place] * p[place]
            missed = missed + y[place] * (1 - p[place])
            false = false + (1 - y[place]) * p[place]
        index = (hits + 1e-5) / (hits + alpha * missed + beta * false + 1e-5)
        terms.append((1 - index) ** (1 / gamma))
    return sum(terms) / len(terms)


@settings(max_examples=15)
@given(
    st.integers(1, 2), st.integers(1, 2), st.lists(st.integers(1, 3), min_size=2, max_size=3),
    st.sampled_from([PAPER, (0.5, 0.5, 1.0), (0.2, 0.9, 2.0)]), st.integers(0, 10**6),
)  # fmt: skip
def test_equations_1_and_2_in_value_and_gradient(
    batch: int, classes: int, size: list[int], chosen: tuple[float, float, float], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(batch, classes, *size, generator=generator, dtype=torch.float64).requires_grad_()
    truth = torch.randint(2, (batch, classes, *size), generator=generator).double()
    ours = focal_tversky_losses(probabilities, truth, *chosen).mean()
    same_gradients(ours, naive(probabilities, truth, *chosen), probabilities)


def test_even_weights_without_focus_are_the_dice_loss() -> None:
    probabilities, truth = torch.rand(2, 1, 5, 5), torch.randint(2, (2, 1, 5, 5)).float()
    ours = focal_tversky_losses(probabilities, truth, 0.5, 0.5, 1.0)
    torch.testing.assert_close(ours, dice_losses(probabilities, truth), rtol=1e-4, atol=1e-5)


def test_missed_foreground_costs_more_than_false_alarms() -> None:
    truth = torch.zeros(1, 1, 4, 4)
    truth[..., :2] = 1
    missed, false = truth.clone(), truth.clone()
    missed[..., :1], false[..., 2:3] = 0, 1
    assert focal_tversky_losses(missed, truth, *PAPER) > focal_tversky_losses(false, truth, *PAPER)


def test_a_perfect_mask_and_an_empty_one_have_finite_gradients() -> None:
    for truth in (torch.ones(1, 1, 3, 3), torch.zeros(1, 1, 3, 3)):
        probabilities = truth.clone().requires_grad_()
        value = focal_tversky_losses(probabilities, truth, *PAPER).sum()
        value.backward()
        assert value < 1e-4
        assert probabilities.grad is not None
        assert probabilities.grad.isfinite().all()


def test_it_takes_the_place_of_the_recipes_loss_with_its_settings() -> None:
    workspace = build_workspace(tiny_recipe("fedfocaltversky(alpha=0.6, beta=0.2, gamma=1.5)"), tiny_task())
    component, step = component_of(workspace, "focal_tversky"), step_of(site_of(workspace))
    onehot = torch.stack([step.labels == 1, step.labels == 2], 1).float()
    ours = component.objective(step)
    torch.testing.assert_close(ours, naive(step.output.logits.softmax(1)[:, 1:], onehot, 0.6, 0.2, 1.5))


def test_over_the_batch_it_is_the_released_form() -> None:
    workspace = build_workspace(tiny_recipe("fedfocaltversky", training={"dice_over": "batch"}), tiny_task())
    step = step_of(site_of(workspace))
    shares, onehot = step.output.logits.softmax(1)[:, 1:], torch.stack([step.labels == 1, step.labels == 2], 1).float()
    one_image = (torch.cat(list(maps), 1)[None] for maps in (shares, onehot))
    torch.testing.assert_close(
        component_of(workspace, "focal_tversky").objective(step), naive(*one_image, 0.7, 0.3, 4 / 3)
    )
