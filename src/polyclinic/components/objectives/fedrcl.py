"""FedRCL's relaxed contrastive learning: classes apart, but no class collapsed to a point.

Paper: Seo et al., *Relaxed Contrastive Learning for Federated Learning*, CVPR 2024. With ``s_ij`` the cosine of the
features of two instances of a batch, ``P`` the ``positives`` least similar instances of the anchor's class and ``N``
the ``negatives`` most similar ones of other classes:

(1) ``scl_i = mean_{j in P} -log( e^{s_ij / tau} / (e^{s_ij / tau} + sum_{k in N} e^{s_ik / tau}) )``
(2) ``penalty_i = log( 1 + sum_{j: same class, s_ij > threshold} e^{(s_ij - 1) / tau} )``
(3) ``L = L_seg + weight * mean over stages of (mean_i scl_i + beta mean_i penalty_i)``

(2) drives apart instances of one class that are nearly equal: without it, supervised contrast makes a site's features
collapse, and they transfer badly. An anchor is its own positive there, at a cosine of 1.

Departures. The paper's instances are images with one class, and its features the averaged maps of all five stages of a
ResNet. Here every class of an image is an instance, with the mean features of its pixels, and the stages are those of
the decoder (``taps``). ``instances = "pixels"`` compares up to ``pixels`` pixels of each class of the batch, drawn anew
in every step and stage; a class is less alike in its pixels than in its means, so that the contrast is far larger and
needs a smaller ``weight``. An anchor is no positive of itself in (1); one without a positive or a negative (a single
class, a single image) is left out, and so is one whose features are all 0. The released code takes (2) over the
``positives`` least similar pairs alone, which are above the threshold only when the whole class is: ``penalty_pairs =
"hardest"``. Its features are those before the ReLU, a tap's are those behind it.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.objectives.prototype_contrast import draw_pixels_by_class
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import TINY, inverse_length
from polyclinic.components.toolbox.pixels import rows_of_pixels
from polyclinic.components.toolbox.prototypes.bank import masked_mean
from polyclinic.components.toolbox.prototypes.grids import resize_labels
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width
from polyclinic.networks.base import SegmentationNetwork


def cosines_between(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines ``(n, n)`` of rows ``(n, channel)``, and which rows have a direction ``(n,)``; the others' are 0."""
    squares = rows.square().sum(1)
    # A row of zeros has no direction; a small divisor instead would give it an enormous slope.
    units = rows * inverse_length(squares)[:, None]
    return units @ units.T, squares > TINY


def class_means(maps: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean features ``(image * class, channel)`` of maps ``(image, channel, *spatial)``, and the class of each row.

    ``labels`` ``(image, *any)`` are resized to the maps. The row of a class that an image does not have is 0.
    """
    of_class = F.one_hot(resize_labels(labels, tuple(maps.shape[2:])).flatten(1), classes).float()
    means = torch.einsum("icp,ipk->ikc", maps.flatten(2).float(), of_class) / of_class.sum(1).clamp_min(1)[..., None]
    return means.flatten(0, 1), torch.arange(classes, device=maps.device).repeat(len(maps))


def contrast(cosines: Tensor, same: Tensor, other: Tensor, positives: int, negatives: int, tau: float) -> Tensor:
    """Equation 1: its mean over the anchors that have both kinds of pairs.

    ``cosines`` is ``(n, n)``; ``same`` and ``other`` say which pairs are positive and negative.
    """
    count = len(cosines)
    near = torch.where(same, cosines, torch.inf).topk(min(positives, count), largest=False).values / tau
    far = torch.where(other, cosines, -torch.inf).topk(min(negatives, count)).values / tau
    usable = near.isfinite() & other.any(1)[:, None]
    near = torch.where(usable, near, 0.0)
    against = torch.where(other.any(1)[:, None], far, 0.0).logsumexp(1)[:, None]
    # -log(e^p / (e^p + sum e^n)) is log(1 + e^(lse(n) - p)), which never overflows.
    each = F.softplus(against - near)
    by_anchor = torch.where(usable, each, 0.0).sum(1) / usable.sum(1).clamp_min(1)
    return masked_mean(by_anchor, usable.any(1))


def penalty(cosines: Tensor, same: Tensor, threshold: float, tau: float, hardest: int | None = None) -> Tensor:
    """Equation 2: its mean over the anchors that have another of their class; ``hardest`` takes so many pairs alone."""
    if hardest is not None:
        least = torch.where(same, cosines, torch.inf).topk(min(hardest, len(cosines)), largest=False)
        same = torch.zeros_like(same).scatter_(1, least.indices, least.values.isfinite())
    close = same & (cosines > threshold)
    terms = torch.where(close, (cosines - 1) / tau, -torch.inf)
    one = torch.zeros_like(terms[:, :1])
    return masked_mean(torch.cat([one, terms], 1).logsumexp(1), same.any(1))


@component
class FedRcl(Component):
    """Pushes features of different classes apart, and those of one class that became nearly equal."""

    name = "fedrcl"
    level = "objective"
    paper = "Seo et al., CVPR 2024"
    equations = (
        "FedRCL: scl_i = -log( e^(s_ij / tau) / (e^(s_ij / tau) + sum_{k in N} e^(s_ik / tau)) ), the hardest j and N",
        "FedRCL: penalty_i = log(1 + sum_{same class, s_ij > threshold} e^((s_ij - 1) / tau))",
    )
    strength = "weight"

    class Settings(ComponentSettings):
        """The released code's numbers; what an instance is, and how many pixels, is our choice."""

        weight: float = Field(1.0, ge=0, description="of both terms together")
        beta: float = Field(1.0, ge=0, description="of the penalty against the contrast")
        tau: float = Field(0.05, gt=0, description="temperature")
        threshold: float = Field(
            0.7, ge=-1, le=1, description="cosine from which on a pair of one class is pushed apart"
        )
        positives: int = Field(1, ge=1, description="least similar instances of the anchor's class in the contrast")
        negatives: int = Field(2, ge=1, description="most similar instances of other classes in the contrast")
        penalty_pairs: Literal["all", "hardest"] = Field("all", description="pairs of a class that may be pushed apart")
        instances: Literal["means", "pixels"] = Field(
            "means", description="what is compared: the mean features of each class in each image, or sampled pixels"
        )
        pixels: int = Field(64, ge=2, description="sampled pixels of each class, batch and stage")
        taps: tuple[str, ...] | Literal["auto"] = Field(
            "auto", min_length=1, description="maps whose pixels are compared; auto: all of the decoder"
        )

    def install(self, network: SegmentationNetwork) -> None:
        """Settle the maps."""
        every = tuple(name for name in network.widths if name.startswith("decoder"))
        self._taps = every if self.settings.taps == "auto" else self.settings.taps
        for tap in self._taps:
            feature_width(network, tap, self.name)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Both terms, each the mean over the stages."""
        if not self.settings.weight or not len(step.images):
            return {}
        with torch.autocast(step.images.device.type, enabled=False):
            terms = torch.stack([self._terms(step, tap) for tap in self._taps]).mean(0)
        weight, beta = self.settings.weight, self.settings.beta
        return {"fedrcl_contrast": weight * terms[0], "fedrcl_penalty": weight * beta * terms[1]}

    def _terms(self, step: Step, tap: str) -> Tensor:
        """Contrast and penalty ``(2,)`` of one map."""
        chosen, maps = self.settings, feature_map(step, tap)
        if chosen.instances == "pixels":
            pixels, classes = step.once(f"{self.name}/{tap}", lambda: self._draw(step, tuple(maps.shape[2:])))
            rows = rows_of_pixels(maps, pixels)
        else:
            rows, classes = class_means(maps, step.labels, len(self.context.task.classes))
        cosines, used = cosines_between(rows)
        alike, used = classes[:, None] == classes, used[:, None] & used
        same, other = alike & used & ~torch.eye(len(classes), dtype=torch.bool, device=maps.device), ~alike & used
        hardest = chosen.positives if chosen.penalty_pairs == "hardest" else None
        return torch.stack(
            [
                contrast(cosines, same, other, chosen.positives, chosen.negatives, chosen.tau),
                penalty(cosines, same, chosen.threshold, chosen.tau, hardest),
            ]
        )

    def _draw(self, step: Step, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Numbers of the drawn pixels in maps of this size, counted image by image, and their classes: ``(n,)``."""
        labels = resize_labels(step.labels, size).reshape(1, -1)
        classes = len(self.context.task.classes)
        positions, real = draw_pixels_by_class(labels, classes, self.settings.pixels, step.generator)
        numbers = torch.arange(classes, device=labels.device)[:, None].expand_as(real[0])
        return positions[0][real[0]], numbers[real[0]]
