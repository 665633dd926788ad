"""RSCFed's mean teacher on unlabelled images, the half of the method that runs at a site.

Paper: Liang et al., *RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning*, CVPR 2022. The teacher is a
moving average of the trained network that stays at the site over rounds; ``q`` are its probabilities on the weak view,
``p`` those of the trained network on the strong view, ``T`` a temperature:

(1) ``theta_t <- e theta_t + (1 - e) theta``,  ``e = min(1 - 1 / (t + 1), ema)`` after step t = 0, 1, ... of all rounds
(2) ``l_u = weight r mean_pixels sum_c (p_c - sharpen(q)_c)^2``,  ``sharpen(q)_c = q_c^(1/T) / sum_k q_k^(1/T)``

``r`` rises linearly from 0 to 1 over the first ``ramp`` share of the run.

Departures: sites have labelled or unlabelled images in the paper and may have both here; the loss is by pixel. The
released code starts from a model trained on labelled images and has its ramp switched off; here training starts from
nothing, and the ramp takes that place. Its teacher keeps the running statistics of the first received model; here they
are copied from the trained network, which the teacher's weights follow.

Nothing leaves the site.
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
from polyclinic.components.toolbox.unlabelled.masked_losses import sharpen
from polyclinic.components.toolbox.unlabelled.teachers import SlowTeacher, probabilities
from polyclinic.exchange.messages import Tensors


@component
class MeanTeacher(Component):
    """Keeps predictions on the strong view near the sharpened ones of a slow copy on the weak view."""

    name = "mean_teacher"
    level = "objective"
    paper = "Liang et al., CVPR 2022"
    equations = (
        "RSCFed: theta_t <- e theta_t + (1 - e) theta",
        "RSCFed: l_u = weight r mean sum_c (p_c - sharpen(q)_c)^2",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """RSCFed's."""

        weight: float = Field(0.02, ge=0, description="of the consistency")
        ema: float = Field(0.999, ge=0, lt=1, description="what the teacher keeps at a step, after its warm-up")
        temperature: float = Field(0.5, gt=0, description="of the sharpening")
        ramp: float = Field(0.3, ge=0, le=1, description="share of the run in which the weight rises")

    _teacher: SlowTeacher | None = None

    @property
    def depends_on_rounds(self) -> bool:
        """The ramp is a share of the run."""
        return bool(self.settings.ramp)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """The teacher of the rounds before, or the received model in the first; none where it would teach nothing."""
        if self.settings.weight and len(site.data.training_indices(False)):
            self._teacher = SlowTeacher(site, self.state, self.settings.ema)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 2."""
        if self._teacher is None or step.weak is None:
            return {}
        teacher, weak = self._teacher.network, step.weak
        targets = step.once(
            f"{self.name}/targets", lambda: sharpen(probabilities(teacher, weak), self.settings.temperature)
        )
        ramp = min(1.0, step.progress / self.settings.ramp) if self.settings.ramp else 1.0
        with torch.autocast(step.weak.device.type, enabled=False):
            gap = step.unlabelled.logits.float().softmax(1) - targets
            return {self.name: self.settings.weight * ramp * gap.square().sum(1).mean()}

    def after_step(self, step: Step) -> None:
        """Equation 1."""
        if self._teacher is not None:
            self._teacher.follow(step.network)

    def share(self, site: SiteRound) -> Tensors:  # noqa: ARG002
        """Nothing leaves; the teacher stays here for the next round."""
        if self._teacher is not None:
            self.state = self._teacher.state()
        return {}
