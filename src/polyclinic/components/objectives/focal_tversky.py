"""The focal Tversky loss.

Paper: Abraham, Khan, *A Novel Focal Tversky Loss Function with Improved Attention U-Net for Lesion Segmentation*, ISBI
2019, with the foreground probability ``p`` and the mask ``y`` of an image and class:

(1) ``TI = (TP + e) / (TP + alpha FN + beta FP + e)``,  ``TP = sum y p``, ``FN = sum y (1 - p)``, ``FP = sum (1 - y) p``
(2) ``L = (1 - TI)^(1 / gamma)``

With ``alpha > beta`` missed foreground costs more than false alarms. FSF3A compares with it as FedFoc-Tvers.

Departures: The released code adds up over a whole batch, which is ``training.dice_over = "batch"`` here; the default is
the mean over images and foreground classes, as for the Dice loss it is compared with, and ``e`` is that loss's 1e-5.
Where ``gamma > 1`` the slope of (2) has no bound at ``TI = 1``: ``1 - TI`` counts as 1e-6 below that.
``policies.absent_classes`` holds as for every loss.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.foreground import foreground, mean_over_foreground
from polyclinic.components.toolbox.segmentation_loss import SMOOTH

_LEAST = 1e-6


def focal_tversky_losses(probabilities: Tensor, truth: Tensor, alpha: float, beta: float, gamma: float) -> Tensor:
    """Equations 1 and 2 of each image and class ``(batch, class)``, for maps ``(batch, class, *spatial)``."""
    hits = (probabilities * truth).flatten(2).sum(2)
    missed = truth.flatten(2).sum(2) - hits
    false = probabilities.flatten(2).sum(2) - hits
    wrong = alpha * missed + beta * false
    # 1 - TI without the subtraction, which would lose its digits near 1.
    return (wrong / (hits + wrong + SMOOTH)).clamp_min(_LEAST) ** (1 / gamma)


@component
class FocalTversky(Component):
    """Replaces the supervised loss by one in which missed foreground costs more than false alarms."""

    name = "focal_tversky"
    level = "objective"
    paper = "Abraham, Khan, ISBI 2019"
    equations = ("focal Tversky: (1 - TI)^(1 / gamma), TI = (TP + e) / (TP + alpha FN + beta FP + e)",)

    class Settings(ComponentSettings):
        """The paper's."""

        alpha: float = Field(0.7, ge=0, description="weight of missed foreground")
        beta: float = Field(0.3, ge=0, description="weight of false foreground")
        gamma: float = Field(4 / 3, gt=0, description="1 / exponent: above 1, images that are nearly right count more")

    def objective(self, step: Step) -> Tensor:
        """Equations 1 and 2."""
        chosen = self.settings
        probabilities, truth = foreground(step.labelled.logits, step.labels, self.context.training.dice_over)
        losses = focal_tversky_losses(probabilities, truth, chosen.alpha, chosen.beta, chosen.gamma)
        return mean_over_foreground(losses, truth.flatten(2).sum(2), self.context.policies.absent_classes)
