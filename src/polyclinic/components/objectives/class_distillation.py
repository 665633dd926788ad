"""FedCD: unlabelled images follow a local and a global teacher, and rare classes count more.

Paper: Liu, Wu, Qin, *FedCD: Federated Semi-Supervised Learning with Class Awareness Balance via Dual Teachers*, AAAI
2024. The global teacher is the received model, the local one a moving average of the trained network that stays at the
site over rounds; both see the weak view. ``p`` are the trained network's probabilities on the strong view, ``q_t``
those of teacher t, ``f`` and ``f_t`` the averages of the bottleneck, one vector for an image:

(1) ``theta_l <- e theta_l + (1 - e) theta``,  ``e = min(1 - 1 / (n + 1), ema)`` after step n = 0, 1, ...
(2) ``v_t = exp(-KL(softmax f || softmax f_t))``                             a number for an image, without a gradient
(3) ``w = 1 - a + a / (K s_k)`` at a pixel where ``k = argmax q_g``; then divided by its mean over the batch
(4) ``l_t = mean_pixels w v_t sum_c (p_c - sharpen(q_t)_c)^2``,  ``sharpen(q)_c = q_c^(1/T) / sum_k q_k^(1/T)``
(5) ``l_u = weight (global_weight l_g + local_weight l_l)``

``s_k`` is the share of class k among the foreground that the global teacher sees in the site's unlabelled images, ``K``
the number of such classes. ``a`` rises from ``alpha_start`` to ``alpha_end`` over the run.

Departures: the paper classifies images and raises the weight of those that may be of a rare class; here (3) is by the
class of a pixel, background and classes never seen weigh ``1``. In the released code ``a`` is a factor that the
division by the mean takes away again; here it turns the balance up. There the divergence in (2) runs the other way and
has a gradient, which would reward features that leave the teachers'. The server is FedAvg's (RSCFed's in the paper).
Where steps see patches, ``s_k`` is counted on the weak views of the round so far.
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
from polyclinic.components.toolbox.unlabelled.teachers import SlowTeacher, StaticTeacher, sees_whole_images
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork


def resemblance(trained: Tensor, teacher: Tensor) -> Tensor:
    """Equation 2 for vectors ``(batch, width)``: ``(batch,)``, 1 where they agree."""
    own, other = trained.float().log_softmax(1), teacher.float().log_softmax(1)
    return (own.exp() * (other - own)).sum(1).exp()


def class_weights(counts: Tensor, alpha: float, background: bool) -> Tensor:
    """Equation 3 for pixel counts ``(class,)``, before the division by the mean."""
    balanced = counts > 0
    balanced[0] &= background
    total = (counts * balanced).sum()
    inverse = total / (balanced.sum() * counts).clamp_min(1)
    return torch.where(balanced, 1 - alpha + alpha * inverse, 1.0)


def pooled(bottleneck: Tensor) -> Tensor:
    """The average ``(batch, width)`` of a map ``(batch, width, *spatial)``."""
    return bottleneck.float().flatten(2).mean(2)


@torch.no_grad()
def observe(network: SegmentationNetwork, images: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities ``(batch, class, *spatial)`` and pooled bottleneck ``(batch, width)`` from one pass."""
    features = network.features(images)
    return features.logits.float().softmax(1), pooled(features.encoder[-1])


@component
class ClassDistillation(Component):
    """Distils two teachers on unlabelled images, by how alike the features are and how rare the classes."""

    name = "class_distillation"
    level = "objective"
    paper = "Liu, Wu, Qin, AAAI 2024"
    equations = (
        "FedCD: theta_l <- e theta_l + (1 - e) theta",
        "FedCD: v_t = exp(-KL(softmax f || softmax f_t))",
        "FedCD: w = 1 - a + a / (K s_k), divided by its mean",
        "FedCD: l_u = sum_t lambda_t mean w v_t sum_c (p_c - sharpen(q_t)_c)^2",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """Both teachers count the same."""

        weight: float = Field(1.0, ge=0, description="of the distillation from both teachers")
        global_weight: float = Field(0.5, ge=0, description="lambda_1: the received model's share")
        local_weight: float = Field(0.5, ge=0, description="lambda_2: the moving average's share")
        ema: float = Field(0.999, ge=0, lt=1, description="what the local teacher keeps at a step, after its warm-up")
        temperature: float = Field(0.5, gt=0, description="T of the sharpening")
        alpha_start: float = Field(0.0, ge=0, le=1, description="how far classes are balanced at the start of the run")
        alpha_end: float = Field(1.0, ge=0, le=1, description="and at its end")
        background: bool = Field(False, description="balance the background too, as one of the classes")

    _local: SlowTeacher | None = None

    @property
    def depends_on_rounds(self) -> bool:
        """The balance of the classes changes over the run."""
        return bool(self.settings.alpha_start != self.settings.alpha_end)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Both teachers, and one walk of the global one over the unlabelled images to count its classes."""
        if not self.settings.weight or not len(site.data.training_indices(False)):
            return
        self._local = SlowTeacher(site, self.state, self.settings.ema)
        self._global = StaticTeacher(site, self.context.image_size)
        self._counts = torch.zeros(site.network.classes, dtype=torch.int64, device=site.device)
        self._counting = not sees_whole_images(site, self.context.image_size)
        self._vectors = torch.zeros(len(site.data.images.samples), site.network.widths["bottleneck"])
        for indices, images, _ in () if self._counting else site.batches(labelled=False):
            probabilities, vectors = observe(self._global.network, images)
            self._count(probabilities)
            if self.context.fixed_views:
                self._global.put(indices, probabilities)
                self._vectors[indices] = vectors.cpu()

    def _count(self, probabilities: Tensor) -> None:
        self._counts += torch.bincount(probabilities.argmax(1).flatten(), minlength=len(self._counts))

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equations 2 to 5; without unlabelled images there is no term."""
        if self._local is None or step.weak is None:
            return {}
        weak, local = step.weak, self._local
        targets = step.once(f"{self.name}/targets", lambda: self._targets(step, weak, local))
        chosen = self.settings
        alpha = chosen.alpha_start + (chosen.alpha_end - chosen.alpha_start) * step.progress
        output = step.unlabelled
        with torch.autocast(step.weak.device.type, enabled=False):
            weights = class_weights(self._counts, alpha, chosen.background)[targets[0][0].argmax(1)]
            weights = weights / weights.mean()
            student, vectors = output.logits.float().softmax(1), pooled(output.encoder[-1].detach())
            terms = []
            for probabilities, theirs in targets:
                gaps = (student - sharpen(probabilities, chosen.temperature)).square().sum(1) * weights
                terms.append((resemblance(vectors, theirs) * gaps.flatten(1).mean(1)).mean())
            both = chosen.global_weight * terms[0] + chosen.local_weight * terms[1]
        return {self.name: chosen.weight * both}

    def _targets(self, step: Step, weak: Tensor, local: SlowTeacher) -> list[tuple[Tensor, Tensor]]:
        """Probabilities and vectors of the global and of the local teacher."""
        rows = step.unlabelled_indices
        if self.context.fixed_views and rows is not None:
            global_view = self._global.known(rows, weak), self._vectors[rows].to(weak.device)
        else:
            global_view = observe(self._global.network, weak)
        if self._counting:
            self._count(global_view[0])
        return [global_view, observe(local.network, weak)]

    def after_step(self, step: Step) -> None:
        """Equation 1."""
        if self._local is not None:
            self._local.follow(step.network)

    def share(self, site: SiteRound) -> Tensors:  # noqa: ARG002
        """Nothing leaves; the local teacher stays here for the next round."""
        if self._local is not None:
            self.state = self._local.state()
        return {}
