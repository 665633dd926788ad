from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.volume_dice import dice_losses
from polyclinic.components.toolbox.foreground import foreground
from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, same_gradients, site_of, step_of
from support import tiny_recipe, tiny_task


def naive(probabilities: torch.Tensor, truth: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Equation 2, voxel by voxel, the mean over images and classes."""
    terms = []
    for p, y in zip(probabilities.flatten(0, 1), truth.flatten(0, 1), strict=True):
        overlap, sizes = p.new_zeros(()), p.new_zeros(())
        for place in product(*map(range, p.shape)):
            overlap, sizes = overlap + y[place] * p[place], sizes + y[place] + p[place]
        terms.append(1 - (2 * overlap + eps) / (sizes + eps))
    return sum(terms) / len(terms)


@settings(max_examples=15)
@given(st.integers(1, 2), st.integers(1, 2), st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(0, 10**6))
def test_equation_2_in_value_and_gradient(batch: int, classes: int, size: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(batch, classes, *size, generator=generator, dtype=torch.float64).requires_grad_()
    truth = torch.randint(2, (batch, classes, *size), generator=generator).double()
    same_gradients(dice_losses(probabilities, truth).mean(), naive(probabilities, truth), probabilities)


def test_an_empty_volume_costs_nothing_when_nothing_is_predicted_and_one_otherwise() -> None:
    truth = torch.zeros(1, 1, 4, 4, 4)
    probabilities = torch.zeros_like(truth).requires_grad_()
    nothing = dice_losses(probabilities, truth).sum()
    nothing.backward()
    assert nothing == 0
    assert probabilities.grad is not None
    assert probabilities.grad.isfinite().all()
    assert dice_losses(torch.full_like(truth, 0.5), truth) > 0.999


def test_it_takes_the_place_of_the_recipes_loss_on_the_foreground() -> None:
    """Of the labelled images alone; MONAI's Dice of all classes is another loss."""
    workspace = build_workspace(tiny_recipe("feddice"), tiny_task(3))
    component, site = component_of(workspace, "volume_dice"), site_of(workspace, 3)
    step = step_of(site, rows=2)
    step.strong = site.data.images.batch(torch.tensor([2]))[0]
    step.output = site.network.features(step.inputs)
    logits = step.output.logits[:2]
    shares, onehot = logits.softmax(1)[:, 1:], torch.stack([step.labels == 1, step.labels == 2], 1).float()
    ours = component.objective(step)
    assert ours is not None
    torch.testing.assert_close(ours, naive(shares, onehot))
    assert abs(ours - segmentation_loss(logits, step.labels, "dice")) > 0.01


def test_over_the_batch_all_patches_are_one_volume() -> None:
    """Side by side along the first axis, the patches have the naive loss of one volume."""
    workspace = build_workspace(tiny_recipe("feddice", training={"dice_over": "batch"}), tiny_task(3))
    step = step_of(site_of(workspace, 3))
    shares, onehot = step.output.logits.softmax(1)[:, 1:], torch.stack([step.labels == 1, step.labels == 2], 1).float()
    ours = component_of(workspace, "volume_dice").objective(step)
    one_volume = (torch.cat(list(maps), 1)[None] for maps in (shares, onehot))
    torch.testing.assert_close(ours, naive(*one_volume))


def test_false_foreground_of_an_empty_patch_has_a_slope_over_the_batch_alone() -> None:
    logits = torch.zeros(2, 2, 4, 4, 4, requires_grad=True)
    labels = torch.zeros(2, 4, 4, 4, dtype=torch.long)
    labels[0, :2] = 1
    slopes = {}
    for over in ("image", "batch"):
        (gradient,) = torch.autograd.grad(dice_losses(*foreground(logits, labels, over)).mean(), logits)
        slopes[over] = gradient[1, 1].abs().max().item()
    assert slopes["image"] < 1e-6
    assert slopes["batch"] > 1e-4


def test_absent_classes_follow_the_policy() -> None:
    values = []
    for policy in ("count", "ignore"):
        workspace = build_workspace(tiny_recipe("feddice", policies={"absent_classes": policy}), tiny_task())
        component, step = component_of(workspace, "volume_dice"), step_of(site_of(workspace))
        step.labels[step.labels == 2] = 0
        losses = dice_losses(
            step.output.logits.softmax(1)[:, 1:], torch.stack([step.labels == 1, step.labels == 2], 1).float()
        )
        values.append((component.objective(step), losses.mean() if policy == "count" else losses[:, 0].mean()))
    for ours, wanted in values:
        torch.testing.assert_close(ours, wanted)


def test_pretraining_leaves_the_first_rounds_to_the_other_terms() -> None:
    workspace = build_workspace(tiny_recipe("fedsimclr(pretrain_rounds=2)"), tiny_task())
    component, site = component_of(workspace, "volume_dice"), site_of(workspace)
    for number, supervised in ((0, False), (1, False), (2, True)):
        value = component.objective(step_of(site, round_number=number))
        assert value is not None
        (gradient,) = torch.autograd.grad(value, [workspace.network.classifier.weight])
        assert bool(value) is bool(gradient.any()) is supervised
    assert not component.warnings()


def test_pretraining_needs_another_loss_and_an_end() -> None:
    with pytest.raises(PolyclinicError, match="no other component of this method has a loss"):
        build_workspace(tiny_recipe("feddice(pretrain_rounds=1)"), tiny_task())
    workspace = build_workspace(tiny_recipe("fedswav(pretrain_rounds=3)"), tiny_task())
    assert "train without labels" in component_of(workspace, "volume_dice").warnings()[0]


def test_two_supervised_losses_are_one_too_many() -> None:
    with pytest.raises(PolyclinicError, match="each replace the supervised loss"):
        build_workspace(tiny_recipe("fsf3a+focal_tversky"), tiny_task())
