"""FGASL's dual-teacher refinement of pseudo labels (DR).

Paper: *FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation*, Medical Image Analysis. The
static teacher is the received model, the dynamic one a moving average of the trained model; both see the weak view.

(6) ``theta_d <- pi_1 theta_d + (1 - pi_1) theta_k``         after every step; starts at the received model each round
(7) ``p_f = (p_s + p_d) / 2``, pseudo label ``argmax p_f``
(8) ``T_lb = delta-quantile of the entropy of labelled pixels``, ``T_un <- pi_2 T_un + (1 - pi_2) T_lb``
(9) ``l_u = Dice + CE`` of the strong view on pixels with ``(H(p_s) + H(p_d)) / 2 <= T_un``

``delta`` rises from ``delta_start`` to ``delta_end`` over all steps of the run. ``T_un`` starts at 0 and stays at the
site.

Departures, with the released code: the mask is by pixel (eq. 8 reads like one by image); cross-entropy is divided by
all pixels, not by those kept; buffers of the dynamic teacher are copied, not averaged. The released code's masked Dice
has a fault in the library it uses; ours is masked after the softmax. A batch without labelled images leaves ``T_un`` as
it is.
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
from polyclinic.semi.losses import entropy, masked_loss, quantile
from polyclinic.semi.teachers import Remembered, follow, probabilities


@component
class DualTeacher(Component):
    """Learns unlabelled images from two teachers, on pixels that both are sure of."""

    name = "dual_teacher"
    level = "objective"
    paper = "FedSemiDG, Medical Image Analysis"
    equations = (
        "FGASL eq. 6: theta_d <- pi_1 theta_d + (1 - pi_1) theta_k",
        "FGASL eq. 7: p_f = (p_s + p_d) / 2",
        "FGASL eq. 8: T_un <- pi_2 T_un + (1 - pi_2) quantile_delta(H of labelled pixels)",
        "FGASL eq. 9: Dice + CE on pixels with (H(p_s) + H(p_d)) / 2 <= T_un",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """The paper's cardiac settings."""

        weight: float = Field(1.0, ge=0, description="lambda_1 of the unlabelled loss")
        ema: float = Field(0.99, ge=0, lt=1, description="pi_1: what the dynamic teacher keeps at a step")
        smoothing: float = Field(0.9, ge=0, lt=1, description="pi_2: what the threshold keeps at a step")
        delta_start: float = Field(0.15, ge=0, le=1, description="quantile of labelled entropies at the start")
        delta_end: float = Field(0.30, ge=0, le=1, description="and at the end of the run")
        debias: bool = Field(False, description="divide the threshold by 1 - pi_2^t, which ends its warm-up")

    _seen: Step | None = None

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Both teachers start from the received model."""
        self._static, self._dynamic = site.frozen(), site.frozen()
        self._remembered = Remembered(site, self._static, site.network.classes) if self.context.fixed_views else None
        self.state.setdefault("threshold", torch.zeros(()))
        self.state.setdefault("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equations 7 to 9 on the unlabelled batch; without one there is no term."""
        if not self.settings.weight:
            return {}
        if self._seen is not step:  # a second pass over the same step must not move the threshold again
            self._seen = step
            self._move_threshold(step)
            self._targets = self._look(step) if step.weak is not None else None
        if self._targets is None or step.strong is None:
            return {}
        labels, uncertainty = self._targets
        mask = uncertainty <= self._threshold()
        with torch.autocast(labels.device.type, enabled=False):
            return {self.name: self.settings.weight * masked_loss(step.unlabelled.logits, labels, mask)}

    @torch.no_grad()
    def _move_threshold(self, step: Step) -> None:
        """Equation 8, from the trained network's outputs in train mode."""
        if not len(step.images):
            return
        chosen = self.settings
        level = chosen.delta_start + (chosen.delta_end - chosen.delta_start) * step.progress
        found = quantile(entropy(step.labelled.logits.detach().float().softmax(1)), level)
        # On the device: reading it would stall a GPU in every step.
        self.state["threshold"] = torch.lerp(found, self.state["threshold"].to(found), chosen.smoothing)
        self.state["steps"] = self.state["steps"] + 1

    def _threshold(self) -> Tensor:
        threshold, steps = self.state["threshold"], int(self.state["steps"])
        return threshold / (1 - self.settings.smoothing**steps) if self.settings.debias and steps else threshold

    @torch.no_grad()
    def _look(self, step: Step) -> tuple[Tensor, Tensor]:
        """Pseudo labels and uncertainty ``(unlabelled, *spatial)`` from the weak view."""
        weak, rows = step.weak, step.unlabelled_indices
        assert weak is not None
        if self._remembered is None or rows is None:
            static = probabilities(self._static, weak)
        else:
            static = self._remembered(rows, weak)
        dynamic = probabilities(self._dynamic, weak)
        return (static + dynamic).argmax(1), (entropy(static) + entropy(dynamic)) / 2

    def after_step(self, step: Step) -> None:
        """Equation 6."""
        follow(self._dynamic, step.network, self.settings.ema)
