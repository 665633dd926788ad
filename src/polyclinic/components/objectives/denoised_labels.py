"""DPL: pseudo labels that several disturbed looks and the classes' prototypes agree on.

Papers: Qiu et al., *Federated Semi-Supervised Learning for Medical Image Segmentation via Pseudo-Label Denoising*, IEEE
JBHI 2023, with the denoising of Chen et al., *Source-Free Domain Adaptive Fundus Image Segmentation with Denoised
Pseudo-Labeling*, MICCAI 2021. Once a round the received model looks at every unlabelled image ``passes`` times with
dropout. ``z_t`` are the logits of look t, ``f`` the finest decoder map, pixel by pixel:

(1) ``p = mean_t softmax(z_t)``,  label ``y = argmax p``,  confidence ``p_y``
(2) ``s = std_t softmax(z_t / T)_y``                                       unbiased
(3) sure: ``p_y > confidence`` and ``s < uncertainty``
(4) ``c_k = sum p_y f / sum p_y`` over sure pixels with ``y = k``          of all unlabelled images of the site
(5) kept: sure and ``y = argmin_k ||f - c_k||``
(6) ``l_u = Dice + CE`` of the strong view against ``y`` on kept pixels

Departures: JBHI's authors released no code; (1) to (5) are those of MICCAI's, with a softmax instead of one sigmoid for
each structure, prototypes of the whole site instead of a batch, and undisturbed features in (4) and (5). Dropout takes
whole channels of the encoder's maps, so that an image is encoded once for all looks; dropout of the network itself
stays off. Norms use running statistics. Cross-entropy is divided by all pixels, not by those kept. Labels of whole
images move with the weak view. Where a step sees patches, or images differ in size, its labels are made on its own weak
view, with the prototypes of all batches of the round so far.
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
from polyclinic.components.toolbox.unlabelled.masked_losses import masked_loss
from polyclinic.components.toolbox.unlabelled.teachers import drop_channels, sees_whole_images
from polyclinic.networks.base import SegmentationNetwork

_OUT = 255  # in a map of labels: this pixel is not used


def disturbed_looks(
    network: SegmentationNetwork,
    pyramid: list[Tensor],
    generator: torch.Generator,
    passes: int,
    dropout: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 1 and 2: labels, confidence and deviation ``(batch, *spatial)``.

    Sums are kept instead of all looks, whose number would multiply the memory.
    """
    mean, first, second = (torch.zeros((), device=pyramid[0].device) for _ in range(3))
    for _ in range(passes):
        logits = network.head(network.decode(drop_channels(pyramid, dropout, generator))[-1]).float()
        tempered = (logits / temperature).softmax(1)
        mean, first, second = mean + logits.softmax(1), first + tempered, second + tempered.square()
    confidence, labels = (mean / passes).max(1)
    index = labels.unsqueeze(1)
    first, second = first.gather(1, index).squeeze(1), second.gather(1, index).squeeze(1)
    variance = (second - first.square() / passes) / (passes - 1)
    return labels, confidence, variance.clamp_min(0).sqrt()


class Prototypes:
    """Means of features by class, gathered over batches; a class without a pixel has none."""

    def __init__(self, classes: int, width: int, device: torch.device) -> None:
        self.sums = torch.zeros(classes, width, device=device)
        self.weights = torch.zeros(classes, device=device)

    def add(self, features: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Equation 4: features ``(batch, width, *spatial)``, labels and weights ``(batch, *spatial)``."""
        shape = (len(labels), len(self.weights), *labels.shape[1:])
        spread = torch.zeros(shape, device=weights.device).scatter_(1, labels.unsqueeze(1), weights.unsqueeze(1))
        with torch.autocast(features.device.type, enabled=False):
            self.sums += torch.einsum("bks,bws->kw", spread.flatten(2), features.float().flatten(2))
            self.weights += spread.transpose(0, 1).flatten(1).sum(1)

    def nearest(self, features: Tensor) -> Tensor:
        """The class ``(batch, *spatial)`` whose prototype is nearest to each pixel."""
        with torch.autocast(features.device.type, enabled=False):
            means = self.sums / self.weights.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
            cross = torch.einsum("kw,bws->bks", means, features.float().flatten(2))
            distances = means.square().sum(1)[:, None] - 2 * cross
        distances.masked_fill_((self.weights == 0)[:, None], torch.inf)
        return distances.argmin(1).reshape(len(features), *features.shape[2:])


@component
class DenoisedLabels(Component):
    """Learns unlabelled images from labels on which disturbed looks and class prototypes agree."""

    name = "denoised_labels"
    level = "objective"
    paper = "Qiu et al., IEEE JBHI 2023"
    equations = (
        "DPL: y = argmax_k mean_t softmax(z_t)_k, s = std_t softmax(z_t / T)_y",
        "DPL: c_k = sum p_y f / sum p_y over pixels with y = k, p_y > confidence, s < uncertainty",
        "DPL: Dice + CE on such pixels with y = argmin_k ||f - c_k||",
    )
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        """Those of the released denoising; ``dropout`` is ours."""

        weight: float = Field(1.0, ge=0, description="of the unlabelled loss")
        passes: int = Field(10, ge=2, description="looks with dropout at an image")
        dropout: float = Field(0.1, ge=0, lt=1, description="probability of dropping a channel of the encoder's maps")
        confidence: float = Field(0.75, ge=0, lt=1, description="a label needs a higher mean probability")
        uncertainty: float = Field(0.05, gt=0, description="and a lower standard deviation over the looks")
        temperature: float = Field(2.0, gt=0, description="T of the probabilities whose deviation is taken")

    _labels: Tensor | None = None

    @torch.no_grad()
    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Labels of the round, where steps see whole images of one size; else only what is needed to make them."""
        rows = site.data.training_indices(False)
        if not self.settings.weight or not len(rows):
            return
        self._teacher = site.frozen()
        self._prototypes = Prototypes(site.network.classes, site.network.widths["decoder0"], site.device)
        if not site.data.images.uniform or not sees_whole_images(site, self.context.image_size):
            return
        self._places = torch.full((len(site.data.images.samples),), -1)
        self._places[rows] = torch.arange(len(rows))
        self._labels = torch.empty(len(rows), *site.data.images.batch(rows[:1])[1].shape[1:], dtype=torch.uint8)
        for indices, images, _ in site.batches(labelled=False):
            self._labels[self._places[indices]] = self._guess(images, site.generator)[0].cpu()
        # A second walk, because features of all images would not fit; it needs one look and not ``passes``.
        for indices, images, _ in site.batches(labelled=False):
            places = self._places[indices]
            features = self._teacher.decode(self._teacher.encode(images))[-1]
            self._labels[places] = self._agreed(self._labels[places].to(site.device), features).cpu()
        del self._teacher

    def _guess(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Equations 1 to 4: labels ``(batch, *spatial)`` where sure, and the undisturbed map."""
        chosen, network = self.settings, self._teacher
        pyramid = network.encode(images)
        features = network.decode(pyramid)[-1]
        labels, confidence, deviation = disturbed_looks(
            network, pyramid, generator, chosen.passes, chosen.dropout, chosen.temperature
        )
        sure = (confidence > chosen.confidence) & (deviation < chosen.uncertainty)
        self._prototypes.add(features, labels, confidence * sure)
        return labels.where(sure, _OUT).to(torch.uint8), features

    def _agreed(self, labels: Tensor, features: Tensor) -> Tensor:
        """Equation 5."""
        return labels.where(labels == self._prototypes.nearest(features), _OUT).to(torch.uint8)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 6; without unlabelled images there is no term."""
        if not self.settings.weight or step.weak is None:
            return {}
        weak = step.weak
        labels = step.once(f"{self.name}/targets", lambda: self._targets(step, weak))
        mask = labels != _OUT
        with torch.autocast(labels.device.type, enabled=False):
            return {self.name: self.settings.weight * masked_loss(step.unlabelled.logits, labels * mask, mask)}

    @torch.no_grad()
    def _targets(self, step: Step, weak: Tensor) -> Tensor:
        """Labels ``(unlabelled, *spatial)`` of the weak view."""
        if self._labels is None:
            return self._agreed(*self._guess(weak, step.generator)).long()
        assert step.unlabelled_indices is not None
        labels = self._labels[self._places[step.unlabelled_indices]].to(weak.device)
        return (labels if step.deformation is None else step.deformation.apply(labels, "nearest")).long()
