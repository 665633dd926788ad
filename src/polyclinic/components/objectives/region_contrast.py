"""The local contrastive loss: regions of a feature map are told apart across two views of an image.

Paper: Chaitanya et al., *Contrastive learning of global and local features for medical image segmentation with limited
annotations*, NeurIPS 2020, eqs. 3-4. ``f_r`` and ``g_r`` are the projected means of region r of two views that differ
in intensities alone:

(1) ``l(a, b) = mean_r -log( exp(cos(a_r, b_r) / T) / sum_s exp(cos(a_r, b_s) / T) )``     within an image
(2) ``L = mean over images of (l(f, g) + l(g, f)) / 2``

FSF3A compares with it as FedLocal-CL.

Departures: The map is the bottleneck, as FSF3A has it "for all methods", and the loss trains beside the supervised
one. The paper's is a decoder's map, pre-trained (``feature = "decoder2"``; the second view then runs the decoder too).
Regions lie side by side, ``region`` cells along each axis, or as many as give two of them; cells left over have no
part. Where there are more than ``regions``, that many are drawn for a step, the same for all its images. The
projection is a 1x1 convolution, here on the means: the same, for fewer cells. The weight ``gamma`` is that of FSF3A's
own penalty.

Nothing leaves the site but the projection, as a weight like any other.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Component
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import info_nce
from polyclinic.components.toolbox.prototypes.taps import feature_map, feature_width
from polyclinic.components.toolbox.view_contrast import IntensityViewSettings, map_of_second_view
from polyclinic.networks.base import SegmentationNetwork


def region_means(maps: Tensor, region: int) -> Tensor:
    """Means ``(batch, region, channel)`` of the regions of a map ``(batch, channel, *spatial)``."""
    for axis in range(2, maps.dim()):
        size = min(region, max(1, maps.shape[axis] // 2))
        count = maps.shape[axis] // size
        before, after = maps.shape[:axis], maps.shape[axis + 1 :]
        maps = maps.narrow(axis, 0, count * size).reshape(*before, count, size, *after).mean(axis + 1)
    return maps.flatten(2).transpose(1, 2)


@component
class RegionContrast(Component):
    """Tells the regions of an image from one another across two views of it: one encoder pass more."""

    name = "region_contrast"
    level = "objective"
    paper = "Chaitanya et al., NeurIPS 2020"
    equations = (
        "Local CL eq. 3: -gamma mean over regions r of log( e^(cos(f_r, g_r) / T) / sum_s e^(cos(f_r, g_s) / T) ), "
        "both ways",
    )
    strength = "gamma"

    class Settings(IntensityViewSettings):
        """``temperature``, ``region`` and ``regions`` are the paper's; the others are ours."""

        gamma: float = Field(0.5, ge=0, description="weight of the term")
        temperature: float = Field(0.1, gt=0)
        feature: str = Field("bottleneck", description="the map whose regions are compared: a tap of the network")
        region: int = Field(3, ge=1, description="cells of a region along each axis")
        regions: int = Field(13, ge=2, description="the most regions of an image that are compared in a step")
        projection: int = Field(128, ge=1, description="channels of the projection")

    def install(self, network: SegmentationNetwork) -> None:
        """The projection, averaged over the sites like any weight."""
        if self.settings.gamma:
            width = feature_width(network, self.settings.feature, self.name)
            network.extras[self.name] = nn.Linear(width, self.settings.projection)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 2 over the labelled images; nothing when there are none, or a single region."""
        chosen = self.settings
        if not chosen.gamma or not len(step.images):
            return {}
        first = feature_map(step, chosen.feature)
        if first.shape[2:].numel() == 1:
            return {}
        second = map_of_second_view(step, self, chosen.feature)
        with torch.autocast(first.device.type, enabled=False):
            views = torch.stack([region_means(maps.float(), chosen.region) for maps in (first, second)])
            if views.shape[2] > chosen.regions:
                count = views.shape[2]
                drawn = step.once(f"{self.name}/drawn", lambda: torch.randperm(count, generator=step.generator))
                views = views[:, :, drawn[: chosen.regions].to(views.device)]
            projected = step.network.extras[self.name](views)
            # Both directions at once: the second half of the stack is the first one turned round.
            return {self.name: chosen.gamma * info_nce(projected, projected.flip(0), chosen.temperature)}
