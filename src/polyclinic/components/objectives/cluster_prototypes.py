"""FPL's cluster and unbiased prototypes.

Paper: Huang et al., *Rethinking Federated Learning with Domain Shift: A Prototype View*, CVPR 2023, eqs. 2 and
4-12: the server clusters the sites' class means by FINCH; sites contrast embeddings with the clusters and hold them
near the mean of their class's clusters.

Departures: in segmentation every pixel of the bottleneck is an instance, background included, with the label nearest to
it; ``cells`` takes the majority or the shares of the labels in it instead. The contrast is a log-sum-exp; an
exponential overflows for ``tau`` below 0.012, and the paper reports NaN at 0.01. The temperature is 0.05 for pixels;
the paper has 0.02 for whole images. The squared distance is a mean over channels as in the released code; eq. 10 has a
sum.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Aligned, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes, cosines, info_nce, masked_mean, mean_distances
from polyclinic.components.toolbox.prototypes.base import PrototypeComponent
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width
from polyclinic.components.toolbox.prototypes.views import Cells, MapView, View
from polyclinic.networks.base import SegmentationNetwork


@component
class ClusterPrototypes(PrototypeComponent):
    """Contrasts pixels with clustered prototypes and holds them near the mean of their class's clusters."""

    name = "cluster_prototypes"
    paper = "Huang et al., CVPR 2023"
    equations = (
        "FPL eqs. 2, 4 and 5: P^c = FINCH of the sites' class means",
        "FPL eqs. 7-8: -log sum_{P^c} exp(cos(z, p) / tau) / sum_P exp(cos(z, p) / tau)",
        "FPL eqs. 6 and 10: ||z - u^c||^2 with u^c = mean of P^c",
    )
    strength = "weight"

    class Settings(ComponentSettings):
        """``weight``: of both terms."""

        weight: float = Field(1.0, ge=0, description="of both terms, 1 in the paper")
        tau: float = Field(0.05, gt=0, description="temperature; 0.02 in the paper, for whole images")
        feature: str = Field("bottleneck", description="the map whose pixels are instances: a tap of the network")
        cells: Cells = Field(
            "nearest", description="the label of such a pixel: of one of the image's in it, of most, or of all by share"
        )

    @property
    def weight(self) -> float:
        """Of every term."""
        return float(self.settings.weight)

    def channels(self, network: SegmentationNetwork) -> dict[str, int]:
        """One stream."""
        return {"prototypes": feature_width(network, self.settings.feature, self.name)}

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The classes in the map."""
        return (Aligned(self.settings.feature, by_class=True),) if self.on else ()

    def views(self, step: Step) -> dict[str, View]:
        """The pixels of the map."""
        features, classes = feature_map(step, self.settings.feature), len(self.context.task.classes)
        return {"prototypes": MapView(features, step.labels, self.settings.cells, classes)}

    def align(self, view: View, prototypes: Prototypes) -> dict[str, Tensor]:
        """Means over the pixels whose class has a prototype."""
        used = prototypes.present[view.labels]
        used = used if view.weights is None else used * view.weights
        dots, squares = view.compare(prototypes.vectors)
        similarities = cosines(dots, squares, prototypes)
        pulls = info_nce(similarities, view.labels, prototypes, self.settings.tau)
        distances = mean_distances(dots, squares, view.labels, prototypes) / view.channels
        return {"contrast": masked_mean(pulls, used), "consistency": masked_mean(distances, used)}
