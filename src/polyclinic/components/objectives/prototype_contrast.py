"""FedContrast-GPA's contrast of pixels with the prototypes of the own site and of the other sites.

Paper: Zhou, Zheng, *FedContrast-GPA: Heterogeneous Federated Optimization via Local Contrastive Learning and Global
Process-Aware Aggregation*, MICCAI 2023. No code was released. **This is a re-implementation from the abstract**, which
names an intra-client and an inter-client contrast with local prototypes; every formula and number below is our choice:

- ``z`` is a pixel's embedding, a linear projection of the finest decoder map; ``P_m`` are site ``m``'s prototypes by
  k-means in each class: 8 of a foreground class and 1 of the background, the 9 of Zhao et al. (AAAI 2026), Table 3.
- ``l(z, y; P) = -log sum_{p in P, class y} exp(cos(z, p) / tau) / sum_{p in P} exp(cos(z, p) / tau)``
- ``intra_weight * mean l(z, y; P_m) + inter_weight * mean l(z, y; union of P_k, k != m)`` over the sampled pixels.

Departures: whatever the chapter does differently. Prototypes are one round old, made with that round's local weights.
A class with fewer distinct samples than clusters sends the samples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes, cosines, info_nce, masked_mean
from polyclinic.components.toolbox.prototypes.enough_cases import means_of_enough_cases
from polyclinic.components.toolbox.prototypes.grids import resize_labels
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width
from polyclinic.core.seeds import owner_number
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

# Without a matrix product the distance of equal rows is exactly 0.
_distances = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")


def draw_pixels_by_class(
    labels: Tensor, classes: int, pixels: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Up to ``pixels`` different pixels of each class and image, uniformly, from labels ``(batch, n)``.

    Gives positions and whether each is real or only fills up a small class, both ``(batch, class, min(pixels, n))``.
    """
    keys = torch.rand(labels.shape, generator=generator).to(labels.device)
    of_class = labels[:, None] == torch.arange(classes, device=labels.device)[:, None]
    best, positions = torch.where(of_class, keys[:, None], -1.0).topk(min(pixels, labels.shape[1]), dim=2)
    return positions, best >= 0


class Reservoir:
    """A uniform sample of all the rows that were added, at most ``size`` of each class: those with the highest keys."""

    def __init__(self, size: int, classes: int, channels: int, device: torch.device) -> None:
        self.size, self.keys = size, torch.empty(classes, 0, device=device)
        self.rows = torch.empty(classes, 0, channels, device=device)
        self.cases = torch.empty(classes, 0, dtype=torch.int64, device=device)

    def add(self, rows: Tensor, real: Tensor, generator: torch.Generator, cases: Tensor) -> None:
        """Add ``rows`` ``(batch, class, n, channels)`` of ``cases`` ``(batch,)`` where ``real``, all but channels."""
        owners = cases.to(rows.device)[:, None, None].expand(real.shape).transpose(0, 1).flatten(1)
        rows, real = rows.transpose(0, 1).flatten(1, 2), real.transpose(0, 1).flatten(1)
        drawn = torch.rand(real.shape, generator=generator).to(rows.device)
        keys = torch.cat([self.keys, torch.where(real, drawn, -1.0)], dim=1)
        self.keys, order = keys.topk(min(self.size, keys.shape[1]), dim=1)
        self.rows = torch.cat([self.rows, rows], dim=1).gather(1, order[..., None].expand(-1, -1, rows.shape[2]))
        self.cases = torch.cat([self.cases, owners], dim=1).gather(1, order)

    def of_classes(self) -> list[Tensor]:
        """The rows of each class ``(n, channels)``, on the CPU."""
        return [rows[keys >= 0] for rows, keys in zip(self.rows.cpu(), self.keys.cpu(), strict=True)]

    def cases_of_classes(self) -> list[Tensor]:
        """The numbers of the cases of these rows ``(n,)``."""
        return [cases[keys >= 0] for cases, keys in zip(self.cases.cpu(), self.keys.cpu(), strict=True)]


def kmeans(rows: Tensor, clusters: int, generator: torch.Generator, iterations: int = 30) -> Tensor:
    """Lloyd's algorithm from a k-means++ start: centres ``(min(clusters, distinct rows), channels)``, none of none."""
    if not len(rows):
        return rows
    centres = rows[torch.randint(len(rows), (1,), generator=generator)]
    while len(centres) < clusters:
        gaps = _distances(rows, centres).amin(1).square().nan_to_num()  # the site reports a training that diverged
        if not gaps.any():
            return centres
        centres = torch.cat([centres, rows[torch.multinomial(gaps, 1, generator=generator)]])
    for _ in range(iterations):
        nearest = _nearest(rows, centres)
        onehot = F.one_hot(nearest, len(centres)).to(rows.dtype)
        counts = onehot.sum(0)[:, None]
        moved = torch.where(counts > 0, onehot.T @ rows / counts.clamp_min(1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each row ``(n,)``, by a matrix product: several times faster, no distance has to be 0."""
    return (centres.square().sum(1) - 2 * rows @ centres.T).argmin(1)


@component
class PrototypeContrast(Component):
    """Contrasts sampled pixels with the clustered prototypes of their own site and with those of the other sites."""

    name = "prototype_contrast"
    level = "objective"
    comes_back = "the prototypes of every site, with a number that stands for the site's name"
    paper = "Zhou, Zheng, MICCAI 2023 (re-implementation from the abstract)"
    equations = ("our form: intra_weight * InfoNCE(z; own prototypes) + inter_weight * InfoNCE(z; the others')",)

    class Settings(ComponentSettings):
        """All defaults are our choice: the paper's are not public."""

        intra_weight: float = Field(0.1, ge=0, description="of the contrast with the own site's prototypes")
        inter_weight: float = Field(0.1, ge=0, description="of the contrast with the other sites' prototypes")
        tau: float = Field(0.1, gt=0, description="temperature")
        channels: int = Field(256, ge=1, description="length of an embedding")
        pixels: int = Field(256, ge=1, description="sampled pixels of each class and image")
        foreground: int = Field(8, ge=1, description="clusters of each foreground class")
        background: int = Field(1, ge=1, description="clusters of the background")
        samples: int = Field(2048, ge=1, description="embeddings of each class that are kept for the clustering")
        feature: str = Field("decoder0", description="the map whose pixels are projected: a tap of the network")

    @property
    def on(self) -> bool:
        """Whether a weight is above zero; otherwise nothing is installed, drawn, kept or shared."""
        return bool(self.settings.intra_weight or self.settings.inter_weight)

    def install(self, network: SegmentationNetwork) -> None:
        """The projection, averaged over the sites like any weight."""
        if self.on:
            width = feature_width(network, self.settings.feature, self.name)
            network.extras[self.name] = nn.Linear(width, self.settings.channels)

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The prototypes, if other sites are to be contrasted with them."""
        if not self.settings.inter_weight:
            return ()
        classes = len(self.context.task.classes)
        most = self.settings.background + self.settings.foreground * (classes - 1)
        return (
            Shared(
                "prototypes", ("clusters", self.settings.channels), "centres of clusters", prototypes=True, at_most=most
            ),
            Shared("classes", ("clusters",), "class of each centre", torch.int64, below=classes, at_most=most),
        )

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The prototypes of all sites."""
        if not self.settings.inter_weight:
            return ()
        return (
            Shared("prototypes", ("clusters", self.settings.channels), "centres of the sites' clusters"),
            Shared("classes", ("clusters",), "class of each", torch.int64, below=len(self.context.task.classes)),
            Shared("owners", ("clusters",), "whose it is", torch.int64),
        )

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The classes in the map, before it is projected: another method's network has that, too."""
        return (Aligned(self.settings.feature, by_class=True),) if self.on else ()

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Take the own prototypes from the memory and those of the other sites from the broadcast."""
        classes, device = len(self.context.task.classes), site.device
        others = {name: tensor[shared["owners"] != owner_number(site.site)] for name, tensor in shared.items()}
        self._banks = {
            term: Prototypes(tensors["prototypes"].to(device), tensors["classes"].to(device), classes)
            for term, tensors in {"intra": self.state, "inter": others}.items()
            if len(tensors.get("prototypes", ()))
        }
        self._kept = Reservoir(self.settings.samples, classes, self.settings.channels, device)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Both terms where there are prototypes; in the last epoch the sampled embeddings are kept for new ones."""
        if not self.on or not len(step.images) or not (self._banks or step.last_epoch):
            return {}
        with torch.autocast(step.images.device.type, enabled=False), torch.set_grad_enabled(bool(self._banks)):
            maps = feature_map(step, self.settings.feature)
            positions, real = step.once(f"{self.name}/pixels", lambda: self._draw(step, tuple(maps.shape[2:])))
            index = positions.flatten(1)[:, None].expand(-1, maps.shape[1], -1)
            rows = maps.flatten(2).gather(2, index).transpose(1, 2).float()
            embeddings = step.network.extras[self.name](rows).unflatten(1, real.shape[1:])
            if step.last_epoch:
                units = F.normalize(embeddings.detach(), dim=3)
                step.once(f"{self.name}/kept", lambda: self._kept.add(units, real, step.generator, self._cases(step)))
            return {f"{self.name}_{term}": self._contrast(term, embeddings, real) for term in self._banks}

    def _draw(self, step: Step, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Positions of the sampled pixels in a map of this size, and which of them are real."""
        labels = resize_labels(step.labels, size).flatten(1)
        return draw_pixels_by_class(labels, len(self.context.task.classes), self.settings.pixels, step.generator)

    def _cases(self, step: Step) -> Tensor:
        """The numbers of the images' cases, where the site's policy asks for several; else nobody looks at them."""
        if step.site.minimum_images == 1 or step.indices is None:
            return torch.zeros(len(step.images), dtype=torch.int64)
        return step.site.case_numbers(step.indices)

    def _contrast(self, term: str, embeddings: Tensor, real: Tensor) -> Tensor:
        """Weighted mean InfoNCE of ``(batch, class, n, channels)`` over real pixels of classes with a prototype."""
        bank = self._banks[term]
        labels = torch.arange(bank.count, device=embeddings.device)[:, None].expand(real.shape).flatten()
        anchors = embeddings.flatten(0, 2)
        similarities = cosines(anchors @ bank.vectors.T, anchors.square().sum(1), bank)
        values = info_nce(similarities, labels, bank, self.settings.tau)
        weight = self.settings.intra_weight if term == "intra" else self.settings.inter_weight
        return masked_mean(values, real.flatten() & bank.present[labels], weight)

    def share(self, site: SiteRound) -> Tensors:
        """Cluster what was kept; the centres are the own prototypes of the next round, and leave.

        Where the site's policy asks for several cases, clusters of fewer join others before they leave.
        """
        if not self.on:
            return {}
        rows = self._kept.of_classes()
        wanted = [self.settings.background] + [self.settings.foreground] * (len(rows) - 1)
        centres = [kmeans(samples, clusters, site.generator) for samples, clusters in zip(rows, wanted, strict=True)]
        self.state = _together(centres) if self.settings.intra_weight else {}
        if not self.settings.inter_weight:
            return {}
        if site.minimum_images > 1:
            centres = [
                means_of_enough_cases(samples, _nearest(samples, means), cases, site.minimum_images)
                if len(samples)
                else means
                for samples, means, cases in zip(rows, centres, self._kept.cases_of_classes(), strict=True)
            ]
        return _together(centres)

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:  # noqa: ARG002
        """All prototypes of the round, with a number that tells whose they are."""
        if not shared:
            return {}
        union = {name: torch.cat([tensors[name] for tensors in shared.values()]) for name in ("prototypes", "classes")}
        counts = torch.tensor([len(tensors["classes"]) for tensors in shared.values()])
        return {**union, "owners": torch.tensor([owner_number(site) for site in shared]).repeat_interleave(counts)}


def _together(centres: list[Tensor]) -> Tensors:
    """The prototypes of all classes ``(clusters, channels)``, and the class of each ``(clusters,)``."""
    counts = torch.tensor([len(means) for means in centres])
    return {"prototypes": torch.cat(centres), "classes": torch.arange(len(centres)).repeat_interleave(counts)}
