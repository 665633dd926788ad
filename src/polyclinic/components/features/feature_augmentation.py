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

Departures: ``var_m`` divides by M (``scalar``: by one less than all values, as the released code does); a round with
fewer than two sites leaves ``S`` as it is. ``var_b`` divides by B - 1, as the released code does. ``sigma`` divides by
the number of pixels; the released code by one less, which fails for one pixel. A drawn ``sigma'`` below 0 becomes 0. A
batch of one image has no ``V``: it is counted in (2) and passes as it is. One draw serves all passes of a step, and (2)
counts the first alone: a weight perturbation then climbs on one and the same loss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.features.statistics_augmentation import StatisticsAugmentation
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_STATISTICS = ("mean", "deviation")


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
        """Those of the released code, with the paper's variances."""

        probability: float = Field(0.5, ge=0, le=1, description="of a layer to act on a batch; 0 switches it off")
        momentum: float = Field(0.99, ge=0, lt=1, description="alpha: what stays of a running average in each batch")
        variances: Literal["channel", "scalar"] = Field(
            "channel", description="S of each channel, or one for a whole layer as in the released code"
        )
        place: Literal["pool", "tap"] = Field(
            "pool", description="behind the pooling below a stage, or at its tap, where skip connections see it too"
        )

    def install(self, network: SegmentationNetwork) -> None:
        """Put a layer behind every encoder stage and at the bottleneck."""
        chosen = self.settings
        self._layers: list[StatisticsAugmentation] = []
        taps = [tap for tap in network.widths if tap.startswith("encoder") or tap == "bottleneck"]
        for tap in taps if chosen.probability else ():
            layer = StatisticsAugmentation(network.widths[tap], chosen.probability, chosen.momentum)
            self._layers.append(layer)
            stage = _stage_with_pooling(network, tap) if chosen.place == "pool" else None
            if stage is None:
                network.insert(tap, self.name, layer)
            else:
                stage.max_pooling = nn.Sequential(
                    OrderedDict({"pool": stage.get_submodule("max_pooling"), self.name: layer})
                )
        prefixes = {module: prefix for prefix, module in network.named_modules()}
        self._variances = {key: [f"{prefixes[layer]}.{key}_variance" for layer in self._layers] for key in _STATISTICS}

    def sets(self, name: str) -> bool:
        """The variances between sites; the running statistics follow the policy for buffers."""
        return any(name in names for names in self._variances.values())

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The running statistics of all layers, one after another."""
        total = sum(len(layer.mean) for layer in self._layers)
        where = f"of each channel of {len(self._layers)} encoder maps"
        lowest = {"mean": None, "deviation": 0.0}
        return tuple(
            Shared(key, (total,), f"running {key} {where}", at_least=lowest[key]) for key in _STATISTICS if total
        )

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The deepest map: layers act in training alone, and their mark is in the weights."""
        return (Aligned("bottleneck"),) if self._layers else ()

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Forget the draws of the site before."""
        self._draw_anew()
        for layer in self._layers:
            layer.begin(evenly=site.minimum_images > 1)

    def on_images(self, step: Step) -> None:
        """The first pass of a step draws, and a second one over the same batch uses the same numbers."""
        self._draw_anew()
        for layer in self._layers if step.site.minimum_images > 1 else ():
            layer.cases_at_hand = step.cases

    def _draw_anew(self) -> None:
        for layer in self._layers:
            layer.draws = {}

    def share(self, site: SiteRound) -> Tensors:
        """The site's running statistics."""
        if not self._layers:
            return {}
        for layer in self._layers if site.minimum_images > 1 else ():
            layer.settle(site.minimum_images)
        return {key: torch.cat([getattr(layer, key) for layer in self._layers]) for key in _STATISTICS}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 3 into the layers' buffers; nothing else is broadcast."""
        widths = [len(layer.mean) for layer in self._layers]
        for key, names in self._variances.items():
            if not server.weights.keys() >= set(names):
                continue  # a method without exchange: every site keeps what it has
            server.weights.update({name: server.previous[name] for name in names})
            if len(shared) < 2:
                continue
            running = torch.stack([tensors[key] for tensors in shared.values()]).double()
            for name, values in zip(names, torch.split(running, widths, 1), strict=True):
                together = self.settings.variances == "scalar"
                between = values.var().expand(values.shape[1]) if together else values.var(0, correction=0)
                server.weights[name] = between.to(server.previous[name].dtype).contiguous()
        return {}


def _stage_with_pooling(network: SegmentationNetwork, tap: str) -> nn.Module | None:
    """The encoder stage below a tap if it begins with a pooling, as those of the U-Net do."""
    stages, number = getattr(network, "encoder", None), tap.removeprefix("encoder")
    if not isinstance(stages, nn.ModuleList) or not number.isdigit() or int(number) + 1 >= len(stages):
        return None
    stage: nn.Module = stages[int(number) + 1]
    return stage if isinstance(getattr(stage, "max_pooling", None), nn.Module) else None
