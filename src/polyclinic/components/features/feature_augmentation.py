"""FedFA's feature augmentation.

Paper: Zhou, Konukoglu, *FedFA: Federated Feature Augmentation*, ICLR 2023. ``mu, sigma`` are the mean and deviation of
each channel of one image's map over space, ``b`` runs over the B images of a batch, ``c`` over the C channels, ``m``
over sites. For each layer, and in the same way for ``sigma`` as for ``mu``:

(1) ``V      = var_b(mu_b) + eps``                              spread inside the batch
(2) ``mubar <- alpha mubar + (1 - alpha) mean_b mu_b``          running average of a site
(3) ``S      = var_m(mubar_m)``                                 server, channel by channel: how far the sites differ
(4) ``v      = 1 / (1 + 1 / (S + eps))``,  ``gamma = C v / sum_c v``
(5) ``mu'    ~ N(mu, (gamma + 1) V)``
(6) ``x'     = sigma' (x - mu) / sigma + mu'``                  in training, for a layer and batch with a probability

Layers sit where the released U-Net has them: behind every pooling of the encoder, so that skip connections carry the
map as it was, and at the bottleneck. A stage without a pooling below it (other networks) has its layer at its tap, and
so have all stages with ``place="tap"``.

The released server takes one variance over sites and channels together, which makes ``gamma`` 1 for every channel
(``variances="scalar"``); the paper's is channel by channel, the default.

Departures: ``var_m`` divides by M; a round with fewer than two sites leaves ``S`` as it is. ``var_b`` divides by B - 1,
as the released code does. ``sigma`` divides by the number of pixels; the released code by one less, which fails for one
pixel. A drawn ``sigma'`` below 0 becomes 0. A batch of one image has no ``V``: it is counted in (2) and passes as it
is. One draw serves all passes of a step, and (2) counts the first alone: a weight perturbation then climbs on one and
the same loss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Component, ComponentSettings, Shared
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.federation.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_EPS = 1e-6
_STATISTICS = ("mean", "deviation")


class StatisticsAugmentation(nn.Module):
    """Redraws the statistics of a map ``(batch, channel, *spatial)`` in train mode; shape and type stay.

    All buffers are ``(channel,)``: the site's running ``mean`` and ``deviation``, and how far these differ between
    sites, ``mean_variance`` and ``deviation_variance``, which the server sets. Random numbers come from torch's global
    CPU generator. ``draws`` holds those of the current step by batch size; while it is ``None``, each pass draws anew.
    """

    mean: Tensor
    deviation: Tensor
    mean_variance: Tensor
    deviation_variance: Tensor

    def __init__(self, channels: int, probability: float, momentum: float) -> None:
        super().__init__()
        self.probability, self.momentum = probability, momentum
        self.draws: dict[int, Tensor | None] | None = None
        self.register_buffer("mean", torch.zeros(channels))
        for name in ("deviation", "mean_variance", "deviation_variance"):
            self.register_buffer(name, torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """The map with new statistics, or as it is. Computed in float32 or better, whatever the type of ``x``."""
        if not self.training:
            return x
        first = not self.draws
        noise = self._noise(x)
        if noise is None:
            return x
        with torch.autocast(x.device.type, enabled=False):
            values = x.to(torch.promote_types(x.dtype, torch.float32)).flatten(2)
            mean = values.mean(2)
            centred = values - mean[..., None]
            deviation = (centred.square().mean(2) + _EPS).sqrt()
            if first:
                self._count(mean.detach(), deviation.detach())
            if len(x) < 2:
                return x
            new_mean = mean + noise[0] * self._width(mean, self.mean_variance)
            new_deviation = (deviation + noise[1] * self._width(deviation, self.deviation_variance)).clamp_min(0)
            result = centred * (new_deviation / deviation)[..., None] + new_mean[..., None]
            return result.view(x.shape).to(x.dtype)

    def _noise(self, x: Tensor) -> Tensor | None:
        """Standard normal numbers ``(2, batch, channel)``, or ``None`` when the draw says to leave the batch alone."""
        if self.draws is not None and len(x) in self.draws:
            return self.draws[len(x)]
        noise = None
        if float(torch.rand(())) < self.probability:
            noise = torch.randn(2, *x.shape[:2]).to(x.device)
        if self.draws is not None:
            self.draws[len(x)] = noise
        return noise

    @torch.no_grad()
    def _count(self, mean: Tensor, deviation: Tensor) -> None:
        """Equation 2 for statistics ``(batch, channel)``."""
        for running, found in ((self.mean, mean), (self.deviation, deviation)):
            running.lerp_(found.mean(0).to(running.dtype), 1 - self.momentum)

    def _width(self, statistic: Tensor, between: Tensor) -> Tensor:
        """Square root of the variance in (5), ``(channel,)``, for a statistic ``(batch, channel)``."""
        inverse = 1 / (1 + 1 / (between + _EPS))
        gamma = len(inverse) * inverse / inverse.sum()
        return ((gamma + 1) * (statistic.var(0) + _EPS)).sqrt()


@component
class FeatureAugmentation(Component):
    """Redraws feature statistics in training, more widely in channels where the sites differ."""

    name = "feature_augmentation"
    level = "feature"
    paper = "Zhou, Konukoglu, ICLR 2023"
    equations = (
        "FedFA: S = variance over sites of the running statistics, gamma = C v / sum v, v = 1 / (1 + 1 / S)",
        "FedFA: mu' ~ N(mu, (gamma + 1) var_b(mu)), sigma' likewise, x' = sigma' (x - mu) / sigma + mu'",
    )
    # No ``strength``: a method with one must name the method it extends, and FedFA has uniform weights.

    class Settings(ComponentSettings):
        """``probability`` of a layer to act on a batch; 0 switches it off. ``momentum``: alpha, the part that stays.

        ``variances``: S by ``channel``, or one ``scalar`` as in the released code. ``place``: behind the ``pool`` that
        follows a stage, or at the stage's ``tap``, where skip connections see it too.
        """

        probability: float = Field(0.5, ge=0, le=1)
        momentum: float = Field(0.99, ge=0, lt=1)
        variances: Literal["channel", "scalar"] = "channel"
        place: Literal["pool", "tap"] = "pool"

    def install(self, network: SegmentationNetwork) -> None:
        """Put a layer behind every chosen stage."""
        chosen = self.settings
        self._layers: dict[str, StatisticsAugmentation] = {}
        taps = [tap for tap in network.widths if tap.startswith("encoder") or tap == "bottleneck"]
        for tap in taps if chosen.probability else ():
            self._layers[tap] = StatisticsAugmentation(network.widths[tap], chosen.probability, chosen.momentum)
            stage = _stage_with_pooling(network, tap) if chosen.place == "pool" else None
            if stage is None:
                network.insert(tap, self.name, self._layers[tap])
            else:
                parts = {"pool": stage.get_submodule("max_pooling"), self.name: self._layers[tap]}
                stage.max_pooling = nn.Sequential(OrderedDict(parts))
        prefixes = {module: prefix for prefix, module in network.named_modules()}
        found = {(tap, key): prefixes[layer] for tap, layer in self._layers.items() for key in _STATISTICS}
        self._variances = {(tap, key): f"{prefix}.{key}_variance" for (tap, key), prefix in found.items()}

    def sets(self, name: str) -> bool:
        """The variances between sites; the running statistics follow the policy for buffers."""
        return name in self._variances.values()

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The running statistics of every layer."""
        sizes = {(tap, key): len(layer.mean) for tap, layer in self._layers.items() for key in _STATISTICS}
        return tuple(Shared(f"{tap}.{key}", (n,), f"running {key} of each channel") for (tap, key), n in sizes.items())

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Forget the draws of the site before."""
        self._draw_anew()

    def on_images(self, step: Step) -> None:  # noqa: ARG002
        """The first pass of a step draws, and a second one over the same batch uses the same numbers."""
        self._draw_anew()

    def _draw_anew(self) -> None:
        for layer in self._layers.values():
            layer.draws = {}

    def share(self, site: SiteRound) -> Tensors:  # noqa: ARG002
        """The site's running statistics."""
        return {f"{tap}.{key}": getattr(layer, key) for tap, layer in self._layers.items() for key in _STATISTICS}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 3 into the layers' buffers."""
        for (tap, key), name in self._variances.items():
            if name not in server.weights:
                continue  # a method without exchange: every site keeps what it has
            server.weights[name] = server.previous[name]
            if len(shared) > 1:
                running = torch.stack([tensors[f"{tap}.{key}"] for tensors in shared.values()]).double()
                together = self.settings.variances == "scalar"
                between = running.var().expand(running.shape[1]) if together else running.var(0, correction=0)
                server.weights[name] = between.to(server.previous[name].dtype).contiguous()
        return {}


def _stage_with_pooling(network: SegmentationNetwork, tap: str) -> nn.Module | None:
    """The encoder stage below a tap if it begins with MONAI's pooling, as those of the U-Net do."""
    stages, number = getattr(network, "encoder", None), tap.removeprefix("encoder")
    if not isinstance(stages, nn.ModuleList) or not number.isdigit() or int(number) + 1 >= len(stages):
        return None
    stage: nn.Module = stages[int(number) + 1]
    return stage if isinstance(getattr(stage, "max_pooling", None), nn.Module) else None
