"""AugSeg: strong views of many kinds, and boxes of labelled images where the teacher is unsure.

Paper: Zhao et al., *Augmentation Matters: A Simple-yet-Effective Approach to Semi-supervised Semantic Segmentation*,
CVPR 2023. ``q`` are the probabilities of a moving average of the network on the weak view, ``K`` the number of classes.
For the images ``i`` of an unlabelled batch:

(1) ``theta_t <- e theta_t + (1 - e) theta``,  ``e = min(1 - 1 / (t + 1), ema)`` at step t
(2) ``x_i = 1 to 3 random intensity operations on the weak view``     see ``toolbox/unlabelled/intensity_pool.py``
(3) ``rho_i = mean over pixels of (1 - H(q) / log K) max q``
(4) with probability ``1 - rho_i``: a box of a labelled image, with its label and confidence 1, goes into a copy of x_i
(5) a box of the copy of another image, with pseudo label and confidence, goes into x_i
(6) ``l_u = mean 1[confidence >= tau] CE(label, p)``,  ``L = L_seg + weight l_u``

A box has the share ``1 - lambda`` of the image, with ``lambda`` from Beta(8, 2) in (4) and Beta(4, 4) in (5). The mean
of (6) runs over all pixels; those left out count as 0.

Departures: the teacher starts each round from the received model, which is also the first term of its mean, and its
warm-up starts again (``teacher = "keep"`` for one that stays at the site). Its buffers are copied, not averaged. Where
there are fewer labelled than unlabelled images in a step, some serve twice; without any there is no (4). Operations on
colour are for colour images alone. A box in 3D has the same share of the volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.cutmix import Views, draw_beta, draw_boxes, paste
from polyclinic.components.toolbox.unlabelled.intensity_pool import perturb
from polyclinic.components.toolbox.unlabelled.masked_losses import entropy, masked_loss
from polyclinic.components.toolbox.unlabelled.teachers import SlowTeacher, probabilities
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_LABELLED_BOX, _BOX = (8, 2), (4, 4)


def certainty(predicted: Tensor) -> Tensor:
    """Equation 3, ``(batch,)``, for probabilities ``(batch, class, *spatial)``."""
    scores = (1 - entropy(predicted) / log(predicted.shape[1])) * predicted.amax(1)
    return scores.flatten(1).mean(1)


@component
class AugSeg(Component):
    """Learns unlabelled images from a slow teacher, under random intensity changes and adaptive CutMix."""

    name = "augseg"
    level = "objective"
    paper = "Zhao et al., CVPR 2023"
    equations = (
        "AugSeg: theta_t <- e theta_t + (1 - e) theta",
        "AugSeg: rho_i = mean (1 - H(q) / log K) max q; a labelled box with probability 1 - rho_i, then CutMix",
        "AugSeg: l_u = mean 1[confidence >= tau] CE(label, p)",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """The paper's."""

        weight: float = Field(1.0, ge=0, description="of the unlabelled loss")
        threshold: float = Field(0.95, ge=0, le=1, description="tau: the least confidence of a pseudo label")
        ema: float = Field(0.999, ge=0, lt=1, description="what the teacher keeps at a step, after its warm-up")
        teacher: Literal["reset", "keep"] = Field("reset", description="each round to the received model, or stays")
        operations: int = Field(3, ge=0, description="the most operations on an image; 0: the weak view as it is")
        colour: bool | Literal["auto"] = Field(
            "auto", description="saturation and hue too; auto: for 2D images of three channels from 0 to 1"
        )
        mix: Literal["adaptive", "unlabelled", "none"] = Field(
            "adaptive", description="CutMix with labelled boxes, among unlabelled images alone, or none"
        )

    _teacher: SlowTeacher | None = None
    _targets: tuple[Tensor, Tensor] | None = None

    def install(self, network: SegmentationNetwork) -> None:
        """Nothing is put into the network; colours need three channels."""
        if self.settings.colour is True and network.channels != 3:
            raise PolyclinicError(
                f"augseg(colour=true): images have {network.channels} channels and colours need 3; leave it at auto."
            )

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """The teacher of the round; none where it would teach nothing."""
        if not self.settings.weight or not len(site.data.training_indices(False)):
            return
        self._teacher = SlowTeacher(site, self.state, self.settings.ema, first_step=1)

    @torch.no_grad()
    def on_images(self, step: Step) -> None:
        """Equations 2 to 5: what the network sees, and what it should say."""
        self._targets = None
        if self._teacher is None or step.weak is None:
            return
        predicted = probabilities(self._teacher.network, step.weak)
        confidence, labels = predicted.max(1)
        strong = step.weak
        if self.settings.operations:
            strong = perturb(strong, step.generator, self.settings.operations, *self._scale())
        if self.settings.mix != "none":
            strong, labels, confidence = self._mixed(step, (strong, labels, confidence), certainty(predicted))
        step.strong, self._targets = strong, (labels, confidence >= self.settings.threshold)

    def _scale(self) -> tuple[bool, bool]:
        """Whether images are in colour, and whether 0 and 1 are black and white."""
        task, unit = self.context.task, self.context.value_range == (0.0, 1.0)
        pictures = task.spatial_dims == 2 and task.channels == 3 and not task.neighbours
        return pictures and unit if self.settings.colour == "auto" else bool(self.settings.colour), unit

    def _mixed(self, step: Step, views: Views, rho: Tensor) -> Views:
        """Equations 4 and 5; one permutation says whose box goes where, as in the released code."""
        images, labels = step.images, step.labels
        batch, spatial, device = len(rho), views[1].shape[1:], rho.device
        partners = torch.randperm(batch, generator=step.generator).to(device)
        copies = views
        if self.settings.mix == "adaptive" and len(images):
            unsure = torch.rand(batch, generator=step.generator).to(device) > rho
            share = 1 - draw_beta(*_LABELLED_BOX, step.generator)
            boxes = draw_boxes(batch, spatial, share, step.generator).to(device)
            boxes = boxes & unsure.view(-1, *[1] * len(spatial))
            rows = partners % len(images)
            copies = paste(boxes, (images[rows], labels[rows], torch.ones_like(views[2])), views)
        boxes = draw_boxes(batch, spatial, 1 - draw_beta(*_BOX, step.generator), step.generator).to(device)
        return paste(boxes, (copies[0][partners], copies[1][partners], copies[2][partners]), views)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 6; without unlabelled images there is no term."""
        if self._targets is None:
            return {}
        labels, mask = self._targets
        with torch.autocast(labels.device.type, enabled=False):
            term = masked_loss(step.unlabelled.logits, labels, mask, dice=False)
        return {self.name: self.settings.weight * term}

    def after_step(self, step: Step) -> None:
        """Equation 1."""
        if self._teacher is not None:
            self._teacher.follow(step.network)

    def share(self, site: SiteRound) -> Tensors:  # noqa: ARG002
        """Nothing leaves; a teacher that is kept stays here."""
        if self._teacher is not None and self.settings.teacher == "keep":
            self.state = self._teacher.state()
        return {}
