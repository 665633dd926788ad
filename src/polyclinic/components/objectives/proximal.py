"""FedProx's proximal term.

Paper: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, eq. 2:
``min_w h_m(w; w^r) = F_m(w) + (mu / 2) ||w - w^r||^2`` over trainable weights.

Departure: the gradient ``mu (w - w^r)`` is added after backward, which equals the term in the loss without building a
graph over all weights. It is coupled with Adam, as in the released codes, not a decoupled decay.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step


@component
class Proximal(Component):
    """Pulls the local weights towards those that were received."""

    name = "proximal"
    level = "objective"
    paper = "Li et al., MLSys 2020"
    equations = ("FedProx eq. 2: (mu / 2) ||w - w^r||^2",)
    strength = "mu"

    class Settings(ComponentSettings):
        """``mu``: strength of the pull."""

        mu: float = Field(0.01, ge=0)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Remember the starting point."""
        parameters = [p for p in site.network.parameters() if p.requires_grad]
        self._parameters = parameters
        self._start = [p.detach().clone() for p in parameters] if self.settings.mu else []

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        """Add ``mu (w - w^r)`` to the gradients and log the term's value."""
        mu = self.settings.mu
        if not mu:
            return
        norms = []
        for parameter, start in zip(self._parameters, self._start, strict=True):
            if parameter.grad is not None:
                difference = parameter - start
                parameter.grad.add_(difference, alpha=mu)
                norms.append(torch.linalg.vector_norm(difference))
        step.losses["proximal"] = 0.5 * mu * torch.stack(norms).square().sum()
