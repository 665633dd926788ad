"""RandConv: images seen through a random convolution keep their shapes and lose their texture.

Paper: Xu et al., *Robust and Generalizable Visual Representation Learning via Random Convolutions*, ICLR 2021. For a
batch, ``k`` is drawn from {1, 3, 5, 7} and ``W`` with its ``C`` by ``C`` kernels of that size from
``N(0, 1 / (C k^dims))``, without bias:

(1) ``RC(x) = W * x``,  mix: ``a RC(x) + (1 - a) x`` with ``a ~ U(0, 1)``
(2) ``L = L_seg(x_1) + weight mean_i KL(p_i || mean_j p_j)``     three draws of (1); the mean over pixels

``variant = "image"`` leaves the batch as it is with probability 1/2 instead of mixing.

Departures: the three views are drawn from the clean images (in the released code two of them from the first view). The
weight is 1 (10 and 5 in the paper, for classification), and ``views`` may be 1, which needs no extra pass and has no
consistency. Images are normalised before, not after. The strong view of unlabelled images goes through the first
convolution, the weak one stays clean. The further views leave running statistics alone.

Nothing leaves the site.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.networks.base import without_statistics

_SIZES = (1, 3, 5, 7)


@component
class RandConv(Component):
    """Shows the network images through random convolutions, and asks for the same prediction on several."""

    name = "randconv"
    level = "image"
    paper = "Xu et al., ICLR 2021"
    equations = (
        "RandConv: x' = a RC(x) + (1 - a) x, RC a random convolution",
        "RandConv: weight mean_i KL(p_i || mean p)",
    )

    # No ``strength``: without the consistency the convolutions stay.

    class Settings(ComponentSettings):
        """Three mixed views."""

        weight: float = Field(1.0, ge=0, description="of the consistency between the views")
        variant: Literal["mix", "image"] = Field("mix", description="mix with the image, or leave half of the batches")
        views: int = Field(3, ge=1, description="random convolutions of a step; the first one trains as usual")

    def on_images(self, step: Step) -> None:
        """Equation 1 on labelled images and the strong view; the further views are kept for the consistency."""
        clean = step.images
        more = self.settings.views - 1 if self.settings.weight and len(clean) else 0
        first = self._draw(step)
        self._views = [self._draw(step)(clean) for _ in range(more)]
        step.images = first(clean)
        if step.strong is not None:
            step.strong = first(step.strong)

    def _draw(self, step: Step) -> _Convolution:
        """Kernel and share of one view, the same for the whole batch."""
        channels, dims = step.network.channels, step.network.spatial_dims
        size = _SIZES[int(torch.randint(len(_SIZES), (), generator=step.generator))]
        scale = (channels * size**dims) ** -0.5
        kernel = scale * torch.randn(channels, channels, *[size] * dims, generator=step.generator)
        share = float(torch.rand((), generator=step.generator))
        if self.settings.variant == "image":
            share = float(share < 0.5)
        return _Convolution(kernel, share)

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 2: the first view's pass is the step's own."""
        if not self._views:
            return {}
        with without_statistics(step.network):
            others = step.network(torch.cat(self._views))
        logits = [step.labelled.logits, *others.chunk(len(self._views))]
        with torch.autocast(others.device.type, enabled=False):
            logs = torch.stack([one.float().log_softmax(1) for one in logits])
            middle = logs.exp().mean(0).clamp_min(torch.finfo(torch.float32).tiny).log()
            gaps = (logs.exp() * (logs - middle)).sum(2)
            return {self.name: self.settings.weight * gaps.mean()}


class _Convolution:
    """A random convolution and the share of its result."""

    def __init__(self, kernel: Tensor, share: float) -> None:
        self.kernel, self.share = kernel, share

    def __call__(self, images: Tensor) -> Tensor:
        if self.share == 0 or not len(images):
            return images
        kernel = self.kernel.to(images)
        convolution = F.conv2d if kernel.dim() == 4 else F.conv3d
        return torch.lerp(images, convolution(images, kernel, padding=kernel.shape[-1] // 2), self.share)
