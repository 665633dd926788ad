"""FedPLVM's clusters at two levels and its alpha-sparsity loss.

Paper: Wang et al., *Taming Cross-Domain Representation Variance in Federated Prototype Learning with Heterogeneous Data
Domains*, NeurIPS 2024, eqs. 3-5: every site clusters the embeddings of its samples by FINCH, and the server clusters
the sites' clusters again; sites contrast samples with them by a power of the cosine, and a correction holds a sample
near the mean of its class's clusters.

Departures: in segmentation a sample is the mean embedding of one class in one image, because FINCH over pixels is not
feasible. A cosine below 1e-6 counts as 1e-6: a power of a negative one is NaN, and that of 0 has no finite slope. The
means are over the samples whose class has a prototype. A class that a site's images lack is filled with the received
average; the released code means to, but stores one vector where its server expects a list and then fails.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes, cosines, info_nce
from polyclinic.components.toolbox.prototypes.enough_cases import means_of_enough_cases
from polyclinic.components.toolbox.prototypes.finch import Partition, cluster_by_class, finch
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width, map_of
from polyclinic.components.toolbox.prototypes.views import Cells, MapView
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import Features, SegmentationNetwork

LOWEST_COSINE = 1e-6


def image_means(
    features: Tensor, labels: Tensor, classes: int, cells: Cells = "nearest"
) -> tuple[Tensor, Tensor, Tensor]:
    """One sample for each image and class: vectors ``(n, channels)``, classes ``(n,)``, and whether it is one ``(n,)``.

    ``features`` ``(batch, channel, *spatial)``, ``labels`` ``(batch, *any)``; ``n`` is ``batch * classes``. A class
    that an image lacks is no sample, and neither is a mean of zeros, which has no direction.
    """
    sums, counts = MapView(features, labels, cells, classes).image_sums(classes)
    vectors = (sums / counts.clamp_min(1)[..., None]).flatten(0, 1)
    owners = torch.arange(classes, device=vectors.device).repeat(len(sums))
    return vectors, owners, vectors.detach().ne(0).any(1)


def correction(vectors: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Eq. 5's correction for each sample ``(n,)``: ``2 (cos - 1)^2`` with the mean of its class's prototypes."""
    return 2 * (F.cosine_similarity(vectors, prototypes.means[labels], dim=1) - 1).square()


@component
class LocalClusters(Component):
    """Contrasts each image's class means with prototypes that are clustered at the sites and again at the server."""

    name = "local_clusters"
    level = "objective"
    comes_back = "prototypes clustered over all sites, without their names"
    paper = "Wang et al., NeurIPS 2024"
    equations = (
        "FedPLVM eq. 3: P_m^c = FINCH of the samples of class c at site m",
        "FedPLVM eq. 4: P^c = FINCH of all P_m^c",
        "FedPLVM eq. 5: weight * (-log sum_{P^c} exp(cos(f, p)^alpha / tau) / sum_P exp(cos(f, p)^alpha / tau)"
        " + 2 (cos(f, mean P^c) - 1)^2)",
    )
    strength = "weight"

    class Settings(ComponentSettings):
        """``weight``: of both terms."""

        weight: float = Field(100.0, ge=0, description="of both terms, 100 in the released code")
        alpha: float = Field(0.25, gt=0, le=1, description="power of the cosine, 0.25 in the released code")
        tau: float = Field(0.07, gt=0, description="temperature, 0.07 in the released code")
        partition: Partition = Field("last", description="FINCH's at a site: first is the finest")
        feature: str = Field("bottleneck", description="the map whose class means are samples: a tap of the network")
        cells: Cells = Field(
            "nearest", description="the label of its pixels: of one of the image's in it, of most, or of all by share"
        )

    @property
    def on(self) -> bool:
        """Whether the weight is above zero; otherwise nothing happens and nothing leaves."""
        return bool(self.settings.weight)

    @property
    def classes(self) -> int:
        """Number of classes, background included."""
        return len(self.context.task.classes)

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The means of the site's clusters, and the class of each."""
        if not self.on:
            return ()
        channels = feature_width(network, self.settings.feature, self.name)
        return (
            Shared("prototypes", ("clusters", channels), "mean of each cluster of image means", prototypes=True),
            Shared("classes", ("clusters",), "class of each cluster", torch.int64, below=self.classes),
        )

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The server's clusters."""
        if not self.on:
            return ()
        channels = feature_width(network, self.settings.feature, self.name)
        return (
            Shared("prototypes", ("clusters", channels), "mean of each cluster of the sites' clusters"),
            Shared("prototypes_classes", ("clusters",), "class of each", torch.int64, below=self.classes),
        )

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The classes in the map."""
        return (Aligned(self.settings.feature, by_class=True),) if self.on else ()

    # ---- site half -----------------------------------------------------------------------------------------------

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Take the global prototypes."""
        self._global = Prototypes.received(shared, "prototypes", self.classes, site.device) if self.on else None

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Contrast and correction, weighted; nothing before there are prototypes."""
        if self._global is None or not len(step.images):
            return {}
        with torch.autocast(step.images.device.type, enabled=False):
            features, cells = feature_map(step, self.settings.feature), self.settings.cells
            vectors, labels, used = image_means(features, step.labels, self.classes, cells)
            used = (used & self._global.present[labels]).float()
            shares = self.settings.weight * used / used.sum().clamp_min(1)
            return {
                "local_clusters_contrast": shares @ self._contrast(vectors, labels, self._global),
                "local_clusters_correction": shares @ correction(vectors, labels, self._global),
            }

    def _contrast(self, vectors: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
        """Eq. 5's contrast for each sample ``(n,)``."""
        similarities = cosines(vectors @ prototypes.vectors.T, vectors.square().sum(1), prototypes)
        powers = similarities.clamp_min(LOWEST_COSINE) ** self.settings.alpha
        return info_nce(powers, labels, prototypes, self.settings.tau)

    @torch.no_grad()
    def share(self, site: SiteRound) -> Tensors:
        """Clusters of the trained network's samples; none at a site without labelled images."""
        if not self.on:
            return {}
        samples, owners, cases = self._samples(site)
        if site.minimum_images > 1:
            vectors, classes = self._of_enough_cases(samples, owners, cases, site.minimum_images)
        else:
            vectors, classes = cluster_by_class(samples, owners, self.settings.partition)
        if self._global is not None and len(vectors):
            lacking = self._global.present.cpu()
            lacking[classes] = False
            vectors = torch.cat([vectors, self._global.means.cpu()[lacking]])
            classes = torch.cat([classes, lacking.nonzero()[:, 0]])
        return {"prototypes": vectors, "classes": classes}

    def _of_enough_cases(self, samples: Tensor, owners: Tensor, cases: Tensor, minimum: int) -> tuple[Tensor, Tensor]:
        """``cluster_by_class`` with no cluster of fewer cases than the site's policy asks for."""
        means, classes = [samples[:0]], [owners[:0]]
        for label in torch.unique(owners):
            own = owners == label
            partition = finch(samples[own])[-1 if self.settings.partition == "last" else 0]
            means.append(means_of_enough_cases(samples[own], partition, cases[own], minimum))
            classes.append(label.expand(len(means[-1])))
        return torch.cat(means), torch.cat(classes)

    def _samples(self, site: SiteRound) -> tuple[Tensor, Tensor, Tensor]:
        """All samples of the site's labelled images as they are, in eval mode: ``(n, channels)``, their classes
        ``(n,)`` and the numbers of their cases ``(n,)``."""
        network, tap = site.network, self.settings.feature
        samples = [torch.zeros(0, feature_width(network, tap, self.name))]
        owners = [torch.zeros(0, dtype=torch.long)]
        cases = [torch.zeros(0, dtype=torch.long)]
        training = network.training
        network.eval()
        try:
            for indices, images, labels in site.batches(labelled=True):
                # Whole images where patches are trained on: a batch of them may not fit.
                whole = self.context.image_size in (None, tuple(images.shape[2:]))
                for part in torch.split(torch.arange(len(images)), len(images) if whole else 1):
                    encoder = network.encode(images[part])
                    decoder = network.decode(encoder) if tap.startswith("decoder") else []
                    features = map_of(Features(encoder, decoder, images), tap)
                    vectors, classes, used = image_means(features, labels[part], self.classes, self.settings.cells)
                    samples.append(vectors[used].cpu())
                    owners.append(classes[used].cpu())
                    cases.append(site.case_numbers(indices[part]).repeat_interleave(self.classes)[used.cpu()])
        finally:
            network.train(training)
        return torch.cat(samples), torch.cat(owners), torch.cat(cases)

    # ---- server half ---------------------------------------------------------------------------------------------

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:  # noqa: ARG002
        """Cluster the sites' clusters of each class again, for the next round."""
        if not self.on or not shared:
            return {}
        vectors = torch.cat([tensors["prototypes"] for tensors in shared.values()])
        classes = torch.cat([tensors["classes"] for tensors in shared.values()])
        return Prototypes(*cluster_by_class(vectors, classes), self.classes).tensors("prototypes")
