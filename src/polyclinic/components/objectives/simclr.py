"""SimCLR's NT-Xent between two views of a batch of images.

Paper: Chen et al., *A Simple Framework for Contrastive Learning of Visual Representations*, ICML 2020, eq. 1 and
algorithm 1. ``u`` are the ``2B`` projections of both views of ``B`` images, ``k'`` the other view of ``k``:

``L = mean_k -log( exp(cos(u_k, u_k') / T) / sum_{j != k} exp(cos(u_k, u_j) / T) )``

A head of two layers projects the pooled bottleneck; it is trained by this term alone and averaged with all weights.
FSF3A compares with it as FedSimCLR and names the temperature, 0.5, alone.

Departures: FSF3A speaks of pre-training; here both losses train together, and ``volume_dice(pretrain_rounds=...)`` sets
rounds with this one alone. The weight ``gamma`` is that of FSF3A's own penalty. The views change intensities and
mirror; cropping would show other anatomy. The first view is the image as the step has it; the second is drawn from it
(``components/toolbox/view_contrast.py``). A batch of one has no negatives and no term.

Nothing leaves the site but the projection, as a weight like any other.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import unit_rows
from polyclinic.components.toolbox.view_contrast import ViewContrast, ViewSettings


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Equation 1, averaged over all ``2B`` rows of two views ``(B, width)``."""
    views = unit_rows(torch.cat([first, second]))
    logits = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    positives = torch.cat([logits.diagonal(len(first)), logits.diagonal(-len(first))])
    return (logits.logsumexp(1) - positives).mean()


@component
class SimClr(ViewContrast):
    """Tells both views of every image from those of all others of its batch: one encoder pass more."""

    name = "simclr"
    paper = "Chen et al., ICML 2020"
    equations = ("SimCLR eq. 1: -gamma mean_k log( e^(cos(u_k, u_k') / T) / sum_{j != k} e^(cos(u_k, u_j) / T) )",)

    class Settings(ViewSettings):
        """``temperature`` is FSF3A's, ``projection`` SimCLR's; the others are ours."""

        gamma: float = Field(0.5, ge=0, description="weight of the term")
        temperature: float = Field(0.5, gt=0)
        projection: int = Field(128, ge=0, description="width of the head on the pooled bottleneck, 0 for none")

    def compare(self, step: Step, first: Tensor, second: Tensor) -> Tensor:  # noqa: ARG002
        """Both views against all."""
        return nt_xent(first, second, self.settings.temperature)
