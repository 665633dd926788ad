"""FGASL's dual-teacher refinement of pseudo labels (DR).

Paper: *FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation*, Medical Image Analysis. The
static teacher ``s`` is the received model. The dynamic one ``d`` is a moving average of the trained model ``k`` and
starts at the received one in every round. Both see the weak view of unlabelled images, in eval mode. ``H`` is the
entropy of a pixel's probabilities. The numbers are the paper's; the two averages of its section 3.3 have none.

(EMA) ``theta_d <- pi_1 theta_d + (1 - pi_1) theta_k``       after every step
(T)   ``T_lb = delta-quantile of H of labelled pixels``, ``T_un <- pi_2 T_un + (1 - pi_2) T_lb``    in every step
(6)   ``p_f = (p_s + p_d) / 2``
(7)   ``y = argmax p_f``
(8)   ``l_u = CE + Dice`` of the strong view against ``y``, on pixels with ``u <= T_un``
(9)   ``u = (H(p_s) + H(p_d)) / 2``

``delta`` rises in a line from ``delta_start`` to ``delta_end`` over all steps of the run. ``T_un`` starts at 0, goes on
from round to round and never leaves the site.

Departures, with the released code: the mask is by pixel (eq. 8 reads like one by image); cross-entropy is divided by
all pixels, not by those kept; buffers of the dynamic teacher are copied, not averaged. The released masked Dice has a
fault in the library that it uses; ours is masked after the softmax. Ours: classes exclude each other (softmax) in every
task. The weight is 0.1 by default and not 1, with which the pseudo labels of a model that is far from trained do harm
(benchmarks/real/fgasl.md). ``dice = false`` and a threshold for each class, ``quantiles = "class"``, are options of
ours: a quantile of all pixels keeps hardly any of a small structure, whose pixels are the least sure. A batch without
labelled images leaves ``T_un`` as it is, and so does one whose outputs are not finite. A site without unlabelled images
has neither teachers nor threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.masked_losses import class_quantiles, entropy, masked_loss, quantile
from polyclinic.components.toolbox.unlabelled.teachers import StaticTeacher, follow, probabilities
from polyclinic.networks.base import SegmentationNetwork


@component
class DualTeacher(Component):
    """Learns unlabelled images from two teachers, on pixels that both are sure of."""

    name = "dual_teacher"
    level = "objective"
    paper = "FedSemiDG, Medical Image Analysis"
    equations = (
        "FGASL sec. 3.3: theta_d <- pi_1 theta_d + (1 - pi_1) theta_k",
        "FGASL sec. 3.3: T_un <- pi_2 T_un + (1 - pi_2) quantile_delta(H of labelled pixels)",
        "FGASL eq. 6-7: pseudo label argmax (p_s + p_d) / 2",
        "FGASL eq. 8-9: CE + Dice on pixels with (H(p_s) + H(p_d)) / 2 <= T_un",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """The paper's cardiac settings, but for the weight, which was chosen on validation data."""

        weight: float = Field(0.1, ge=0, description="lambda_1 of the unlabelled loss; 1 in the paper")
        ema: float = Field(0.99, ge=0, lt=1, description="pi_1: what the dynamic teacher keeps at a step")
        smoothing: float = Field(0.9, ge=0, lt=1, description="pi_2: what the threshold keeps at a step")
        delta_start: float = Field(0.15, ge=0, le=1, description="quantile of labelled entropies at the start")
        delta_end: float = Field(0.30, ge=0, le=1, description="and at the end of the run")
        debias: bool = Field(False, description="divide the threshold by 1 - pi_2^t, which ends its warm-up")
        dice: bool = Field(True, description="the Dice of eq. 8; without it cross-entropy alone")
        quantiles: Literal["all", "class"] = Field("all", description="of all pixels, or of those of each class")

    _static: StaticTeacher | None = None
    _dynamic: SegmentationNetwork | None = None

    @property
    def depends_on_rounds(self) -> bool:
        """The quantile of the threshold rises over the run."""
        return bool(self.settings.delta_start != self.settings.delta_end)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Both teachers start from the received model; where nothing is to be taught there are none."""
        if not self.settings.weight or not len(site.data.training_indices(False)):
            return
        self._static, self._dynamic = StaticTeacher(site, self.context.image_size), site.frozen()
        shape = (site.network.classes,) if self.settings.quantiles == "class" else ()
        self.state.setdefault("threshold", torch.zeros(shape))
        self.state.setdefault("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equations 6 to 9 on the unlabelled batch; without one there is no term."""
        if self._dynamic is None:
            return {}
        step.once(f"{self.name}/threshold", lambda: self._move_threshold(step))
        targets = step.once(f"{self.name}/targets", lambda: self._targets(step))
        if targets is None:
            return {}
        labels, uncertainty = targets
        threshold = self._threshold()
        mask = uncertainty <= (threshold[labels] if self.settings.quantiles == "class" else threshold)
        with torch.autocast(labels.device.type, enabled=False):
            term = masked_loss(step.unlabelled.logits, labels, mask, self.settings.dice)
        return {self.name: self.settings.weight * term}

    @torch.no_grad()
    def _move_threshold(self, step: Step) -> None:
        """The moving average (T), from the trained network's outputs in train mode."""
        if not len(step.images):
            return
        chosen = self.settings
        level = chosen.delta_start + (chosen.delta_end - chosen.delta_start) * step.progress
        values = entropy(step.labelled.logits.float().softmax(1))
        if chosen.quantiles == "class":
            observed = class_quantiles(values, step.labels, len(self.state["threshold"]), level)
        else:
            observed = quantile(values, level)
        # On the device: reading it would stall a GPU in every step. An overflow in half precision, whose step is
        # skipped, must not stay in the average for ever.
        before = self.state["threshold"].to(observed)
        observed = torch.where(observed.isfinite(), observed, before)
        self.state["threshold"] = torch.lerp(observed, before, chosen.smoothing)
        self.state["steps"] = self.state["steps"] + 1

    def _threshold(self) -> Tensor:
        threshold, steps = self.state["threshold"], int(self.state["steps"])
        return threshold / (1 - self.settings.smoothing**steps) if self.settings.debias and steps else threshold

    def _targets(self, step: Step) -> tuple[Tensor, Tensor] | None:
        """Pseudo labels (eq. 7) and uncertainty (eq. 9) ``(unlabelled, *spatial)`` from the weak view, if any."""
        if step.weak is None or self._static is None or self._dynamic is None:
            return None
        if self.context.fixed_views and step.unlabelled_indices is not None:
            static = self._static.known(step.unlabelled_indices, step.weak)
        else:
            static = self._static(step.weak)
        dynamic = probabilities(self._dynamic, step.weak)
        return (static + dynamic).argmax(1), (entropy(static) + entropy(dynamic)) / 2

    def after_step(self, step: Step) -> None:
        """The moving average (EMA)."""
        if self._dynamic is not None:
            follow(self._dynamic, step.network, self.settings.ema)
