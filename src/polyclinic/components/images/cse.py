"""PathFL's collaborative style enhancement (CSE).

Paper: Zhang et al., *PathFL: Multi-alignment Federated Learning for pathology image segmentation*, Medical Image
Analysis 2025. No code was released. ``x`` is an image with ``N`` pixels, ``M`` a mask:

(6), (7) ``mu = (1 / N) sum x``, ``sigma = sqrt((1 / N) sum (x - mu)^2)``    an image's style; a site's is their mean
(8) ``x_style = (x - mu) / sigma * sigma_j + mu_j``    ``j`` drawn from the pool of all sites
(9) ``x_hybrid = M x + (1 - M) x_style``               ``M`` is 1 on one half of the image

Departures. The paper exchanges styles every epoch; here it is every round, with the weights. Its mask is rotated and
flipped; that leaves four equally likely halves, which are drawn directly and so fit images that are not square (in 3D
the two halves of every axis). The paper names no share of images; on every image CSE cost three points of Dice that it
does not on a quarter of them (``probability``). A site's own style is left out of its draw (``exclude_self``); the
paper draws from all. The deviation is ``sqrt(variance + 1e-12)``. Where ``data.intensity`` bounds values, to 0-1,
``x_style`` is clamped to that (``clamp``). A site that is absent stays in the pool with its last style. Styles are
those of labelled images after augmentation, which alone are changed; the views of unlabelled images are left as they
are.

On raw intensities a style tells what an image is where sites differ in polarity: nuclei that are darker than their
ground are in bright images, brighter ones in dark images. (8) moves the brightness and keeps the polarity, and so makes
images that no site has. ``data.intensity = "site"`` takes the brightness of sites out first, as the authors' FedSODA
does; what is exchanged then is how images differ from their site's mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.core.machine import widest_float
from polyclinic.core.seeds import owner_number
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_EPS = 1e-6


def standardised(images: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mu) / sigma``, ``mu`` and ``sigma`` of images ``(batch, channel, *spatial)``.

    The statistics are ``(batch, groups)``: over the whole image for one group, of each channel for as many groups.
    """
    values, (batch, channels) = images.float().contiguous(), images.shape[:2]
    size = images.shape[2:].numel()
    # Group norm: on a CPU its statistics are many times faster than var_mean's.
    normal, mean, inverse = torch.native_group_norm(values, None, None, batch, channels, size, groups, _EPS**2)
    return normal, mean, inverse.reciprocal()


def halves(size: Sequence[int], device: torch.device) -> Tensor:
    """The first half of every axis, ``floor(n / 2)`` long, then the second half of every axis: ``(2 axes, *size)``."""
    grids = torch.meshgrid(*[torch.arange(n, device=device) < n // 2 for n in size], indexing="ij")
    first = torch.stack(grids)
    return torch.cat([first, ~first])


@component
class Cse(Component):
    """Gives one half of every training image the style of another site."""

    name = "cse"
    level = "image"
    rests_on_last_epoch = True
    paper = "Zhang et al., Medical Image Analysis 2025"
    equations = (
        "PathFL eqs. 6-7: mu, sigma = mean and deviation of an image",
        "PathFL eq. 8: x_style = (x - mu) / sigma * sigma_j + mu_j",
        "PathFL eq. 9: x_hybrid = M x + (1 - M) x_style, M = 1 on one half of the image",
    )

    comes_back = "the last style of every site, with a number that stands for the site's name"

    class Settings(ComponentSettings):
        """The paper's scalars; a quarter of the images, chosen on validation data (benchmarks/real/pathfl.md)."""

        statistics: Literal["scalar", "channel"] = Field("scalar", description="of a whole image, or of each channel")
        exclude_self: bool = Field(True, description="leave the own style out of the draw")
        clamp: bool = Field(True, description="keep styled pixels in the images' range, where data.intensity has one")
        probability: float = Field(
            0.25, ge=0, le=1, description="of changing an image: 1 as eqs. 8 and 9 are written, 0 switches CSE off"
        )

    def warnings(self) -> list[str]:
        """Standardised images have no style left, and styles of raw intensities may tell the modality."""
        if not self._on:
            return []
        if not self.context.keeps_style:
            return [
                "cse changes almost nothing: data.intensity gives every image mean 0 and deviation 1; use site, whose "
                "images still differ from each other."
            ]
        if self.context.value_range is not None:
            return [
                "cse: from 0 to 1 it cost Dice where modalities are mixed, more the more images it changed "
                "(benchmarks/real/pathfl.md); lower probability, or try data.intensity = site, and compare with FedAvg "
                "on both."
            ]
        return []

    @property
    def _on(self) -> bool:
        return bool(self.settings.probability > 0)

    @property
    def _groups(self) -> int:
        return self.context.task.channels if self.settings.statistics == "channel" else 1

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The site's style: two numbers, or two of each channel."""
        shape = (self._groups,)
        means = Shared("mean", shape, "mean over the training images of an image's mean")
        what = "mean over the training images of an image's standard deviation"
        deviations = Shared("deviation", shape, what, at_least=0)
        return (means, deviations) if self._on else ()

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The pool."""
        if not self._on:
            return ()
        shape = ("styles", self._groups)
        owners = Shared("owners", ("styles",), "whose style it is", torch.int64)
        return (*(Shared(name, shape, f"{name} of each site's style") for name in ("mean", "deviation")), owners)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Take the pool, without the own style if so asked, and begin to collect the own one."""
        exclude = self.settings.exclude_self
        kept = {n: t[shared["owners"] != owner_number(site.site)] if exclude else t for n, t in shared.items()}
        self._styles = (kept["mean"].to(site.device), kept["deviation"].to(site.device)) if kept else None
        self._sums = torch.zeros(2, self._groups, dtype=widest_float(site.device), device=site.device)
        self._count = 0
        self._cases: set[int] = set()

    def on_images(self, step: Step) -> None:
        """Collect the style of the images as they are, then change them; without a pool nothing is drawn."""
        styles = self._styles if self._styles is not None and len(self._styles[0]) else None
        if not self._on or not len(step.images) or not (styles or step.last_epoch):
            return
        normal, mean, deviation = standardised(step.images, self._groups)
        if step.last_epoch:
            self._note(mean, deviation)
            if step.site.minimum_images > 1 and step.indices is not None:
                self._cases.update(step.site.case_numbers(step.indices).tolist())
        if styles:
            step.images = self._hybrid(step.images, normal, *styles, step.generator)

    def _note(self, mean: Tensor, deviation: Tensor) -> None:
        """Add the styles ``(batch, groups)`` of a batch."""
        self._sums += torch.stack([mean.sum(0, dtype=self._sums.dtype), deviation.sum(0, dtype=self._sums.dtype)])
        self._count += len(mean)

    def _hybrid(
        self, images: Tensor, normal: Tensor, means: Tensor, deviations: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Equations 8 and 9 for a batch; ``means`` and ``deviations`` are ``(styles, groups)``."""
        count, device, spatial_ones = len(images), images.device, [1] * (images.dim() - 2)
        style = torch.randint(len(means), (count,), generator=generator).to(device)
        side = torch.randint(2 * len(spatial_ones), (count,), generator=generator).to(device)
        shift, scale = (values[style].reshape(count, -1, *spatial_ones) for values in (means, deviations))
        styled = torch.addcmul(shift, normal, scale)
        if self.settings.clamp and self.context.value_range is not None:
            styled.clamp_(*self.context.value_range)
        original = halves(images.shape[2:], device)[side]
        if self.settings.probability < 1:
            spared = torch.rand(count, generator=generator) >= self.settings.probability
            original |= spared.to(device).reshape(count, *spatial_ones)
        return torch.where(original[:, None], images, styled.to(images.dtype))

    def share(self, site: SiteRound) -> Tensors:
        """The mean style of the last epoch's images."""
        if not self._on:
            return {}
        if not self._count:  # no labelled image came by
            for indices, images, _ in site.batches():
                self._note(*standardised(images, self._groups)[1:])
                self._cases.update(site.case_numbers(indices).tolist())
        site.require_cases(self.name, self._cases)
        mean, deviation = (self._sums / max(1, self._count)).float()
        return {"mean": mean, "deviation": deviation}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:  # noqa: ARG002
        """The pool: the last style of every site that ever answered, with a number that tells whose it is."""
        names = ("mean", "deviation")
        pool = {int(owner): [self.state[n][row] for n in names] for row, owner in enumerate(self._owners())}
        pool |= {owner_number(site): [tensors[n] for n in names] for site, tensors in shared.items()}
        if not pool:
            return {}
        styles = zip(*(pool[owner] for owner in sorted(pool)), strict=True)
        self.state = {n: torch.stack(rows) for n, rows in zip(names, styles, strict=True)}
        self.state["owners"] = torch.tensor(sorted(pool))
        return dict(self.state)

    def _owners(self) -> list[int]:
        found: list[int] = self.state["owners"].tolist() if self.state else []
        return found
