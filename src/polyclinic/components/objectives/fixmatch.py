"""FixMatch: a confident prediction on the weak view is the label of the strong view.

Paper: Sohn et al., *FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence*, NeurIPS 2020. With
``q`` the trained network's probabilities on the weak view and ``p`` those on the strong one, pixel by pixel:

(4) ``l_u = mean 1[max q >= tau] CE(argmax q, p)``

The mean runs over all pixels; those left out count as 0. FedSemiDG's baseline has ``tau = 0.7`` and adds a soft Dice on
the same pixels (``dice``).

Departures: as many unlabelled as labelled images make a step (seven times as many in the paper). The network sees the
weak view in a pass of its own, in train mode and without a trace in running statistics (one pass over everything in the
paper).

Nothing leaves the site.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.masked_losses import masked_loss
from polyclinic.components.toolbox.unlabelled.teachers import probabilities
from polyclinic.networks.base import SegmentationNetwork, without_statistics


@component
class FixMatch(Component):
    """Learns unlabelled images from the network's own confident predictions on their weak view."""

    name = "fixmatch"
    level = "objective"
    paper = "Sohn et al., NeurIPS 2020"
    equations = ("FixMatch eq. 4: l_u = mean 1[max q >= tau] CE(argmax q, p)",)
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """The paper's."""

        weight: float = Field(1.0, ge=0, description="lambda_u of the unlabelled loss")
        threshold: float = Field(0.95, ge=0, le=1, description="tau: the least confidence of a pseudo label")
        dice: bool = Field(False, description="add a soft Dice on the confident pixels")

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 4; without unlabelled images there is no term."""
        if not self.settings.weight or step.weak is None:
            return {}
        weak = step.weak
        labels, mask = step.once(f"{self.name}/targets", lambda: self._pseudo_labels(step.network, weak))
        with torch.autocast(labels.device.type, enabled=False):
            term = masked_loss(step.unlabelled.logits, labels, mask, self.settings.dice)
        return {self.name: self.settings.weight * term}

    def _pseudo_labels(self, network: SegmentationNetwork, weak: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo labels and the mask of confident ones, ``(unlabelled, *spatial)``."""
        with without_statistics(network):
            confidence, labels = probabilities(network, weak).max(1)
        return labels, confidence >= self.settings.threshold
