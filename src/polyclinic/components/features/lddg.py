"""LDDG: a variational head whose latent features are made linearly dependent.

Paper: Li et al., *Domain Generalization for Medical Imaging Classification with Linear-Dependency Regularization*,
NeurIPS 2020. Two small networks (1x1 convolution, ReLU, 1x1 convolution) read the last decoder map; ``Z`` holds the
latents of random pixels, one a row, and ``s_k(Z)`` is its k-th largest singular value:

(1) ``mu, log var = f(x), g(x)``,  ``z = mu + exp(log var / 2) e``,  ``e ~ N(0, 1)``     inference: ``z = mu``
(2) ``logits = head(z)``
(3) ``KL = mean of (mu^2 + var - log var - 1) / 2``                                       N(mu, var) against N(0, 1)
(4) ``L = L_seg + kl KL + low_rank s_(rank + 1)(Z)``

Singular values are roots of the eigenvalues of ``Z^T Z``, a small matrix.

Departures: the released code draws ``z`` twice, once without a gradient; (1) is the usual form. Its first network has
the weight ``2 kl``; ours has ``kl``, as its second. The batch is a site's own, while the paper's has images of all
domains: ranks are made low within a site, and the averaging of weights makes them agree. All images of the pass count,
unlabelled ones too. One draw of ``e`` serves all passes of a step.

The head's weights travel like any other. Nothing else leaves the site.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.pixels import draw_pixels, rows_of_pixels
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.machine import widest_float
from polyclinic.networks.base import SegmentationNetwork


class _Passes(list[tuple[Tensor, ...]]):
    """Passes of a step that wait for their loss. A copy of the network is not part of the step and has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Passes:
        return _Passes()


class VariationalMap(nn.Module):
    """A decoder map ``(batch, width, *spatial)`` to latents ``(batch, latent, *spatial)``, equation 1.

    Passes that can be trained are kept in ``passes``: the map as it came in, mean, log variance and latents.
    """

    def __init__(self, width: int, latent: int, hidden: int, dims: int) -> None:
        super().__init__()
        convolution = nn.Conv2d if dims == 2 else nn.Conv3d

        def network() -> nn.Sequential:
            return nn.Sequential(convolution(width, hidden, 1), nn.ReLU(), convolution(hidden, latent, 1))

        self.mean, self.log_variance = network(), network()
        self.passes = _Passes()
        self.seed: int | None = None  # of the step; torch's own generator draws where there is none

    def forward(self, features: Tensor) -> Tensor:
        """Random latents in train mode, their means otherwise."""
        mean: Tensor = self.mean(features)
        if not self.training:
            return mean
        log_variance: Tensor = self.log_variance(features).float()
        mean = mean.float()
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        latents = mean + (log_variance / 2).exp() * noise
        if torch.is_grad_enabled():
            self.passes.append((features, mean, log_variance, latents))
        return latents


def divergence_from_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Equation 3."""
    return (mean.square() + log_variance.exp() - log_variance - 1).mean() / 2


def singular_value(rows: Tensor, number: int) -> Tensor:
    """The singular value of ``rows`` ``(row, column)`` that ``number`` others exceed; without a gradient near 0."""
    wide = rows.to(widest_float(rows.device))
    # For so small a matrix the way to the CPU costs less than a GPU's own routine, which waits for it all the same.
    gram = (wide.T @ wide).cpu()
    if not gram.isfinite().all():  # an overflow: the step is skipped, or the training has diverged, which others say
        return rows.sum() * torch.nan
    values = torch.linalg.eigvalsh(gram)
    rounding = 100 * torch.finfo(values.dtype).eps * values[-1].detach()
    floor = rounding.clamp_min(torch.finfo(values.dtype).tiny)
    return torch.maximum(values[-1 - number], floor).sqrt().to(rows.device, rows.dtype)


@component
class Lddg(Component):
    """Puts a variational map before the classifier and keeps its latents near a normal law and of low rank."""

    name = "lddg"
    level = "feature"
    paper = "Li et al., NeurIPS 2020"
    equations = (
        "LDDG: z = mu + exp(log var / 2) e, logits = head(z); inference: z = mu",
        "LDDG: kl KL(N(mu, var) || N(0, 1)) + low_rank s_(rank + 1)(Z)",
    )
    strength = "weight"

    class Settings(ComponentSettings):
        """Those of the released code."""

        weight: float = Field(1.0, ge=0, description="of both terms; 0 leaves the network as it is, without this head")
        kl: float = Field(0.01, ge=0, description="weight of the divergence from a normal law")
        low_rank: float = Field(0.001, ge=0, description="weight of the singular value")
        rank: int = Field(2, ge=0, description="singular values that stay free; the next one is made small")
        latent: int = Field(8, ge=1, description="channels of the latent map")
        hidden: int = Field(64, ge=1, description="channels of the two networks' hidden map")
        pixels: int = Field(2000, ge=1, description="how many of a batch the singular value looks at")

        @model_validator(mode="after")
        def _has_that_many(self) -> Lddg.Settings:
            if self.rank >= self.latent:
                raise ValueError(f"rank = {self.rank} must be smaller than latent = {self.latent}")
            return self

    def install(self, network: SegmentationNetwork) -> None:
        """The classifier becomes the variational map and a classifier of its latents."""
        chosen = self.settings
        if not chosen.weight:
            return
        if not isinstance(getattr(network, "classifier", None), nn.Module):
            raise PolyclinicError("lddg: this network has no module 'classifier' to put latents before.")
        dims = network.spatial_dims
        self._module = VariationalMap(network.widths["decoder0"], chosen.latent, chosen.hidden, dims)
        convolution = nn.Conv2d if dims == 2 else nn.Conv3d
        head = convolution(chosen.latent, network.classes, kernel_size=1)
        network.classifier = nn.Sequential(OrderedDict({self.name: self._module, "head": head}))

    def on_images(self, step: Step) -> None:
        """A seed for the noise of the step."""
        if self.settings.weight:
            self._module.seed = int(torch.randint(2**62, (), generator=step.generator))
            self._module.passes.clear()

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equations 3 and 4, of the step's own pass: another component may have made more."""
        chosen, terms = self.settings, dict[str, Tensor]()
        if not chosen.weight:
            return terms
        features = step.output.decoder[-1]
        _, mean, log_variance, latents = next(kept for kept in self._module.passes if kept[0] is features)
        self._module.passes.clear()
        with torch.autocast(mean.device.type, enabled=False):
            if chosen.kl:
                terms["lddg_kl"] = chosen.weight * chosen.kl * divergence_from_normal(mean, log_variance)
            if chosen.low_rank:
                pixels = step.once(f"{self.name}/pixels", lambda: draw_pixels(latents, chosen.pixels, step.generator))
                rows = rows_of_pixels(latents, pixels)
                terms["lddg_rank"] = chosen.weight * chosen.low_rank * singular_value(rows, chosen.rank)
        return terms

    def after_step(self, step: Step) -> None:  # noqa: ARG002
        """Let go of passes that came after the loss."""
        if self.settings.weight:
            self._module.passes.clear()
