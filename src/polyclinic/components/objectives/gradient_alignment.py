"""The gradient alignment of CLSL, FSF3A's client localized structural loss.

Paper: FSF3A, eqs. 3-8. ``y`` is the mask, ``p`` the foreground probability:

(3)   ``grad_x v = v[i + 1, j, k] - v[i, j, k]``, and so along each axis
(4-6) ``L_grad,x = (1 / N) sum (grad_x y - grad_x p)^2``, ``N`` the number of differences
(7)   ``L_grad = (L_grad,x + L_grad,y + L_grad,z) / 3``
(8)   ``L_spatial = L_Dice + omega L_grad``       ``L_Dice``: ``components/objectives/volume_dice.py``

Departures: The foreground is that of ``volume_dice``; several foreground classes have the mean over them. In 2D there
are two axes. An axis of one voxel has no difference and no part in the mean of (7).

As the term is linear in the differences, those of ``y - p`` are taken once, in place of both. Nothing leaves the site.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.foreground import foreground


def gradient_loss(probabilities: Tensor, truth: Tensor) -> Tensor:
    """Equations 3 to 7 of maps ``(batch, class, *spatial)``, the mean over batch and classes."""
    error = truth - probabilities
    axes = [axis for axis in range(2, error.dim()) if error.shape[axis] > 1]
    if not axes:
        return error.sum() * 0
    return torch.stack([error.diff(dim=axis).square().mean() for axis in axes]).mean()


@component
class GradientAlignment(Component):
    """Makes the edges of the predicted foreground those of the mask, along every axis."""

    name = "gradient_alignment"
    level = "objective"
    paper = "FSF3A"
    equations = ("FSF3A eqs. 3-8: omega mean over axes of mean (grad y - grad p)^2",)
    strength = "omega"

    class Settings(ComponentSettings):
        """The paper's."""

        omega: float = Field(0.5, ge=0, description="weight of the term beside the Dice loss")

    def loss(self, step: Step) -> dict[str, Tensor]:
        """The weighted term over the labelled images; nothing when there are none."""
        if not self.settings.omega or not len(step.images):
            return {}
        return {self.name: self.settings.omega * gradient_loss(*foreground(step.labelled.logits, step.labels))}
