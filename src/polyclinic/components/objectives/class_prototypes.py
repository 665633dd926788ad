"""FedProto's prototypes.

Paper: Tan et al., *FedProto: Federated Prototype Learning across Heterogeneous Clients*, AAAI 2022, eqs. 3 and
6-8: a site's prototype is the mean embedding of a class, the server averages them, and sites keep embeddings near.

Departures: in segmentation every pixel is an instance; its embedding is the finest decoder map. Weights are averaged as
well, as in every use of the method for segmentation; ``fedproto+no_exchange`` shares prototypes alone as the original.
Each pixel is held near, as each instance in the released code; eq. 8 holds the mean. The server's mean over sites is
unweighted as in the released code; eq. 6 weights by instances (``sites = "pixels"``) and, as printed, divides by the
number of sites once more, which we leave out.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Aligned, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes, masked_mean, mean_distances
from polyclinic.components.toolbox.prototypes.base import PrototypeComponent
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width
from polyclinic.components.toolbox.prototypes.views import MapView, View
from polyclinic.networks.base import SegmentationNetwork


@component
class ClassPrototypes(PrototypeComponent):
    """Keeps every pixel's embedding near the federation's mean embedding of its class."""

    name = "class_prototypes"
    paper = "Tan et al., AAAI 2022"
    equations = (
        "FedProto eq. 3: C_m^c = mean embedding of class c at site m",
        "FedProto eq. 6: Cbar^c = mean over the sites that have class c",
        "FedProto eqs. 7-8: L_seg + weight * mean ||e_i - Cbar^{y_i}||^2",
    )
    strength = "weight"

    class Settings(ComponentSettings):
        """``weight``: of the distance, 1 in the released code."""

        weight: float = Field(1.0, ge=0, description="of the distance, 1 in the released code")
        feature: str = Field("decoder0", description="the map whose pixels are instances: a tap of the network")
        sites: Literal["uniform", "pixels"] = Field("uniform", description="weights of the server's mean over sites")

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
        return {"prototypes": MapView(feature_map(step, self.settings.feature), step.labels)}

    def align(self, view: View, prototypes: Prototypes) -> dict[str, Tensor]:
        """Mean over channels and over the pixels whose class has a prototype."""
        used = prototypes.present[view.labels]
        dots, squares = view.compare(prototypes.vectors)
        distances = mean_distances(dots, squares, view.labels, prototypes) / view.channels
        return {"distance": masked_mean(distances, used)}

    def globalise(self, means: Tensor, counts: Tensor) -> Prototypes:
        """One prototype a class: the mean over the sites that have it."""
        weights = (counts > 0).to(means.dtype) if self.settings.sites == "uniform" else counts.to(means.dtype)
        present = weights.sum(0) > 0
        mean = torch.einsum("mk,mkc->kc", weights / weights.sum(0).clamp_min(1e-12), means)
        return Prototypes(mean[present], present.nonzero()[:, 0], means.shape[1])
