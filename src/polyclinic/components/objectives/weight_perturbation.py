"""HarmoFL's client weight perturbation, a step of sharpness-aware minimisation.

Paper: Jiang, Wang, Dou, *HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images*, AAAI 2022. In every local step, with ``L`` the loss of the batch and one norm over all weights:

(1) ``g = grad L(w)``
(2) ``w' = w + alpha g / ||g||_2``    ascending: the worst neighbour within a ball of radius alpha, to first order
(3) ``g' = grad L(w')``               on the same batch; the optimiser steps from ``w`` with ``g'``

A step costs two forward and two backward passes.

The second pass clears the gradients, so this component runs before others that add to them (``recomputes``); their
terms act on the gradient at ``w'``, whatever the order in the method's expression.

Departures: ``w`` is copied back, not reached by subtracting the step, so that it is exact. Running statistics of batch
norms see the first pass only (the released networks have none). The logged losses and ``step.output`` are those of
``w``, not of ``w'``. The norm is increased by 1e-12, as in the released code, so that a gradient of 0 moves nothing.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.networks.base import without_statistics


@component
class WeightPerturbation(Component):
    """Trains with the gradient at the worst point near the weights, which leads to flat optima."""

    name = "weight_perturbation"
    level = "objective"
    paper = "Jiang et al., AAAI 2022"
    equations = ("HarmoFL: step with the gradient at w + alpha g / ||g||",)
    recomputes = True
    # No ``strength``: a method with one must name the method it extends, and harmofl at alpha = 0 is no other method.

    class Settings(ComponentSettings):
        """``alpha``: length of the perturbation; 0 switches it off."""

        alpha: float = Field(0.05, ge=0)

    def on_gradients(self, step: Step) -> None:
        """Replace the gradients by those at the perturbed weights."""
        active: list[Tensor] = [p for p in step.network.parameters() if p.grad is not None]
        if not self.settings.alpha or not active:
            return
        with torch.no_grad():
            start = [p.detach().clone() for p in active]
            gradients = [p.grad for p in active if p.grad is not None]
            length = self.settings.alpha / (torch.nn.utils.get_total_norm(gradients) + 1e-12)
            for parameter, gradient in zip(active, gradients, strict=True):
                parameter.add_(gradient * length)
        losses, output = step.losses, step.output
        try:
            with without_statistics(step.network):
                step.recompute()
        finally:
            with torch.no_grad():
                for parameter, value in zip(active, start, strict=True):
                    parameter.copy_(value)
            step.losses, step.output = losses, output
