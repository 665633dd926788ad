"""A mean teacher on unlabelled images: the site's half of RSCFed.

Paper: Liang et al., *RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning*, CVPR 2022. The teacher is a
moving average of the trained network that stays at the site over rounds; ``q`` are its probabilities on the weak view,
``p`` those of the trained network on the strong view, ``T`` a temperature:

(1) ``theta_t <- e theta_t + (1 - e) theta``,  ``e = min(1 - 1 / (t + 1), ema)`` at step t
(2) ``l_u = weight ramp mean (p - sharpen(q))^2``,  ``sharpen(q)_c = q_c^(1/T) / sum_k q_k^(1/T)``

``ramp`` rises linearly to 1 over the first ``ramp`` share of the run.

Departures: sites have labelled or unlabelled images in the paper and may have both here; the loss is by pixel.
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
from polyclinic.federation.messages import Tensors
from polyclinic.semi.teachers import follow, probabilities


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Probabilities ``(batch, class, *spatial)`` to the power of ``1 / temperature``, divided by their sum."""
    logs = probabilities.clamp_min(torch.finfo(torch.float32).tiny).log() / temperature
    return logs.softmax(1)


@component
class MeanTeacher(Component):
    """Keeps predictions on the strong view near the sharpened ones of a slow copy on the weak view."""

    name = "mean_teacher"
    level = "objective"
    paper = "Liang et al., CVPR 2022"
    equations = (
        "RSCFed: theta_t <- e theta_t + (1 - e) theta",
        "RSCFed: l_u = weight ramp mean (p - sharpen(q))^2",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """RSCFed's."""

        weight: float = Field(0.02, ge=0, description="of the consistency")
        ema: float = Field(0.999, ge=0, lt=1, description="what the teacher keeps at a step, after its warm-up")
        temperature: float = Field(0.5, gt=0, description="of the sharpening")
        ramp: float = Field(0.3, ge=0, le=1, description="share of the run in which the weight rises")

    _seen: tuple[Step, Tensor] | None = None

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """The teacher of the rounds before, or the received model in the first."""
        kept = {name.removeprefix("teacher/"): tensor for name, tensor in self.state.items() if name != "steps"}
        self._teacher = site.frozen(kept or None)
        self._steps = int(self.state["steps"]) if "steps" in self.state else 0

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 2."""
        if not self.settings.weight or step.weak is None:
            return {}
        if self._seen is None or self._seen[0] is not step:
            self._seen = step, sharpen(probabilities(self._teacher, step.weak), self.settings.temperature)
        ramp = min(1.0, step.progress / self.settings.ramp) if self.settings.ramp else 1.0
        with torch.autocast(step.weak.device.type, enabled=False):
            gap = step.unlabelled.logits.float().softmax(1) - self._seen[1]
            return {self.name: self.settings.weight * ramp * gap.square().mean()}

    def after_step(self, step: Step) -> None:
        """Equation 1."""
        self._steps += 1
        follow(self._teacher, step.network, min(1 - 1 / (self._steps + 1), self.settings.ema))

    def share(self, site: SiteRound) -> Tensors:
        """Nothing leaves; the teacher stays here for the next round."""
        frozen = site.network.frozen()
        kept = {n: t for n, t in self._teacher.state_dict().items() if n not in frozen}
        self.state = {f"teacher/{name}": tensor.clone() for name, tensor in kept.items()}
        self.state["steps"] = torch.tensor(self._steps)
        return {}
