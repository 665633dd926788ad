"""SwAV: the cluster assignment of one view of an image is predicted from the other view.

Paper: Caron et al., *Unsupervised Learning of Visual Features by Contrasting Cluster Assignments*, NeurIPS 2020.
``z_1`` and ``z_2`` are the projected features of two views of an image and ``C`` the prototypes, all of length 1:

(1) ``L = mean over images of (l(z_1, q_2) + l(z_2, q_1)) / 2``
(2) ``l(z, q) = -sum_k q_k log p_k``,  ``p = softmax(C z / T)``
(3) ``q = Sinkhorn(C z / epsilon)``: of the rows of a view and of its queue, each prototype with the same total

The prototypes are weights of the network, averaged over the sites; in the first round they stay as they are. Codes have
no gradient. FSF3A compares with it as FedSwAV.

Departures, for small batches of volumes: two views and no further crops; 64 prototypes; the queue is used as it fills
and stays at the site between rounds. Prototypes are made unit vectors where they are used, also after the mean. (1) has
the mean where the paper has the sum. FSF3A speaks of pre-training; here both losses train together, and
``volume_dice(pretrain_rounds=...)`` sets rounds with this one alone. The first view is the image as the step has it;
the second is drawn from it (``components/toolbox/view_contrast.py``). A single image with an empty queue has no term.

Nothing leaves the site but projection and prototypes, as weights like any other. The queue, features of the site's
images, stays in its memory.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import unit_rows
from polyclinic.components.toolbox.view_contrast import ViewContrast, ViewSettings
from polyclinic.networks.base import SegmentationNetwork


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Equation 3: codes ``(..., row, prototype)`` of scores of that shape; every row sums to 1. In logarithms."""
    logs = scores / epsilon
    for _ in range(iterations):
        logs = logs - logs.logsumexp(-2, keepdim=True)
        logs = logs - logs.logsumexp(-1, keepdim=True)
    return logs.exp()


def swapped_prediction(scores: Tensor, codes: Tensor, temperature: float) -> Tensor:
    """Equations 1 and 2 of scores and codes ``(2, batch, prototype)``."""
    return -(codes.flip(0) * (scores / temperature).log_softmax(-1)).sum(-1).mean()


@component
class SwAV(ViewContrast):
    """Predicts which prototypes one view of an image belongs to from the other view: one encoder pass more."""

    name = "swav"
    paper = "Caron et al., NeurIPS 2020"
    equations = (
        "SwAV eqs. 1-2: -gamma mean (q_2 log softmax(C z_1 / T) + q_1 log softmax(C z_2 / T)) / 2",
        "SwAV eq. 3: q = Sinkhorn(C z / epsilon), every prototype with the same total",
    )

    class Settings(ViewSettings):
        """``temperature``, ``epsilon``, ``iterations`` and ``projection`` are SwAV's; the others are ours."""

        gamma: float = Field(0.5, ge=0, description="weight of the term")
        temperature: float = Field(0.1, gt=0)
        epsilon: float = Field(0.05, gt=0, description="of Sinkhorn: small for codes of few prototypes")
        iterations: int = Field(3, ge=1, description="of Sinkhorn")
        projection: int = Field(128, ge=0, description="width of the head on the pooled bottleneck, 0 for none")
        prototypes: int = Field(64, ge=2)
        queue: int = Field(128, ge=0, description="earlier images of the site that take part in the codes")
        frozen_rounds: int = Field(1, ge=0, description="rounds at the start in which prototypes are not trained")

    _newest: Tensor | None = None

    def install(self, network: SegmentationNetwork) -> None:
        """The projection, and the prototypes."""
        super().install(network)
        if self.settings.gamma:
            width = self.projection or network.widths["bottleneck"]
            network.extras[f"{self.name}_prototypes"] = nn.Linear(width, self.settings.prototypes, bias=False)

    def warnings(self) -> list[str]:
        """The queue has something to compare with even for a batch of one."""
        return [] if self.settings.queue else super().warnings()

    def has_negatives(self, step: Step) -> bool:
        """Whether there are two rows to assign."""
        return len(step.images) > 1 or "queue" in self.state

    def compare(self, step: Step, first: Tensor, second: Tensor) -> Tensor:
        """Equations 1 to 3; the features wait for the end of the step to enter the queue."""
        chosen, device = self.settings, first.device
        views = unit_rows(torch.stack([first, second]))
        prototypes = unit_rows(cast(nn.Linear, step.network.extras[f"{self.name}_prototypes"]).weight)
        if step.round < chosen.frozen_rounds:
            prototypes = prototypes.detach()
        self._newest = step.once(f"{self.name}/newest", lambda: views.detach())
        rows = views.detach()
        if "queue" in self.state:
            rows = torch.cat([rows, self.state["queue"].to(device)], dim=1)
        codes = sinkhorn(rows @ prototypes.detach().T, chosen.epsilon, chosen.iterations)[:, : len(first)]
        return swapped_prediction(views @ prototypes.T, codes, chosen.temperature)

    def after_step(self, step: Step) -> None:  # noqa: ARG002
        """The newest features enter the queue ``(2, row, width)``, the oldest leave it."""
        if self._newest is None or not self.settings.queue:
            return
        queue = [self.state["queue"].to(self._newest.device)] if "queue" in self.state else []
        self.state = {"queue": torch.cat([self._newest, *queue], dim=1)[:, : self.settings.queue].clone()}
        self._newest = None
