"""FGASL's perturbation-invariant alignment (PIA).

Paper: *FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation*, Medical Image Analysis.
``E`` is the encoder's pyramid, ``D`` the finest map of the decoder, ``delta`` a perturbation of features:

(10) ``l_p = mean (D(E(x)) - D(delta(E(x))))^2``    over labelled images and the strong view of unlabelled ones

``delta`` drops channels of every level (Dropout2d), multiplies features by ``1 + U(-range, range)``, or adds the
change that moves the decoder's map most (virtual adversarial training, VAT; Miyato et al. 2019).

Departures, with the released code: eq. 10 prints the perturbation inside ``E``, the text and the code perturb features;
all encoder outputs are perturbed, skips included; the mean runs over all numbers of the batch, where eq. 10 adds the
mean squared norms of its two parts, which differs by constant factors; gradients flow through both sides
(``stop_gradient`` for the clean one not to). Ours: the perturbed pass leaves running statistics alone, which in the
released code it moves. The length of VAT's change is relative to each map's deviation; a fixed one would vanish in
large maps and in half precision.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.teachers import drop_channels
from polyclinic.networks.base import without_statistics


@component
class PerturbationInvariance(Component):
    """Keeps the decoder's map the same when encoder features are perturbed: one extra decode a step."""

    name = "perturbation_invariance"
    level = "objective"
    paper = "FedSemiDG, Medical Image Analysis"
    equations = ("FGASL eq. 10: l_p = mean (D(E(x)) - D(delta(E(x))))^2",)
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """The paper's cardiac settings."""

        weight: float = Field(0.3, ge=0, description="lambda_2")
        perturbation: Literal["dropout", "noise", "vat"] = Field("dropout", description="of the encoder's features")
        probability: float = Field(0.3, ge=0, lt=1, description="of dropping a channel")
        range: float = Field(0.3, ge=0, description="of the noise: features times 1 + U(-range, range)")
        radius: float = Field(1.0, gt=0, description="of VAT: length of the change, in deviations of each map")
        stop_gradient: bool = Field(False, description="no gradient through the clean map")

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 10."""
        if not self.settings.weight:
            return {}
        clean = step.output.decoder[-1]
        with without_statistics(step.network):
            perturbed = step.network.decode(self._perturbed(step))[-1]
        target = clean.detach() if self.settings.stop_gradient else clean
        with torch.autocast(clean.device.type, enabled=False):
            return {self.name: self.settings.weight * (target.float() - perturbed.float()).square().mean()}

    def _perturbed(self, step: Step) -> list[Tensor]:
        """The pyramid, perturbed; random numbers come from the step's own generator, so passes of a step differ."""
        pyramid = step.output.encoder
        if self.settings.perturbation == "vat":
            return self._adversarial(step)
        if self.settings.perturbation == "noise":
            reach = self.settings.range
            return [f * (1 + reach * (2 * _uniform(f.shape, step) - 1)).to(f.dtype) for f in pyramid]
        return drop_channels(pyramid, self.settings.probability, step.generator)

    def _adversarial(self, step: Step) -> list[Tensor]:
        """One power iteration: the gradient of the change of the map with respect to a small random direction."""
        pyramid = [f.detach() for f in step.output.encoder]
        scales = [f.float().std(correction=0).to(f.dtype) for f in pyramid]
        small = [1e-2 * s * (2 * _uniform(f.shape, step) - 1).to(f.dtype) for f, s in zip(pyramid, scales, strict=True)]
        directions = [d.requires_grad_() for d in small]
        moved = step.network.decode([f + d for f, d in zip(pyramid, directions, strict=True)])[-1]
        # A sum and not a mean, whose gradient could underflow in half precision; the direction is the same.
        change = (step.output.decoder[-1].detach() - moved).float().square().sum()
        found = torch.autograd.grad(change, directions)
        return [
            f + self.settings.radius * s * _unit(g) for f, s, g in zip(step.output.encoder, scales, found, strict=True)
        ]


def _uniform(shape: torch.Size, step: Step) -> Tensor:
    """Numbers in [0, 1) on the images' device."""
    return torch.rand(shape, generator=step.generator).to(step.images.device)


def _unit(gradient: Tensor) -> Tensor:
    """Each image's gradient with a mean square of 1; zeros stay."""
    axes = tuple(range(1, gradient.dim()))
    size = gradient.float().square().mean(axes, keepdim=True).sqrt()
    return (gradient.float() / size.clamp_min(torch.finfo(torch.float32).tiny)).to(gradient.dtype)
