"""InfoNCE between two views of a batch of images.

Paper: van den Oord, Li, Vinyals, *Representation Learning with Contrastive Predictive Coding*, 2018, eq. 4, for the
pooled bottlenecks ``z_i`` and ``z'_i`` of two views of image i of a batch:

``L = mean_i -log( exp(cos(z_i, z'_i) / T) / sum_j exp(cos(z_i, z'_j) / T) )``

In one direction, from the first view to the second, and without a projection. FSF3A compares with it as FedInfoNCE and
names the temperature, 0.5, alone.

Departures: The paper's density ratio is a bilinear form of a context; with views of images it is a cosine. The weight
``gamma`` is that of FSF3A's own penalty. The first view is the image as the step has it; the second is drawn from it
(``components/toolbox/view_contrast.py``). A batch of one has no negatives and no term.

Nothing leaves the site, and nothing is kept.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import info_nce
from polyclinic.components.toolbox.view_contrast import ViewContrast, ViewSettings


@component
class InfoNce(ViewContrast):
    """Tells every image from the others of its batch, by the features of a second view: one encoder pass more."""

    name = "infonce"
    paper = "van den Oord et al., 2018"
    equations = ("InfoNCE: -gamma mean_i log( e^(cos(z_i, z'_i) / T) / sum_j e^(cos(z_i, z'_j) / T) )",)

    class Settings(ViewSettings):
        """``temperature`` is FSF3A's; the others are ours."""

        gamma: float = Field(0.5, ge=0, description="weight of the term")
        temperature: float = Field(0.5, gt=0)

    def compare(self, step: Step, first: Tensor, second: Tensor) -> Tensor:  # noqa: ARG002
        """One direction: the first view's rows against the second's."""
        return info_nce(first, second, self.settings.temperature)
