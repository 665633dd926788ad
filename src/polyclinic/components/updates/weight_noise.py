"""HistoFL's noise on the weights that leave a site.

Paper: Lu et al., *Federated learning for computational pathology on gigapixel whole slide images*, Medical Image
Analysis 2022. For every weight tensor ``w_m`` of site m, with ``s(w)`` the standard deviation of its entries, ``z`` the
noise level, and ``e_m`` standard normal numbers of its shape:

(1) ``w_m' = w_m + z s(w_m) e_m``       site, before the update leaves
(2) ``w    = sum_m a_m w_m'``           server, the mean of FedAvg

The released code draws the noise at the server and adds it next to the mean, so that its variance does not shrink with
the number of sites (``noise_mode="official"``): ``w = sum_m a_m w_m + sum_m z s(w_m) e_m``.

Departures: biases get no noise, as in the released code. Its model has neither norm layers nor buffers and so says
nothing about them; here they get none either, because noise can make a variance negative. A tensor with one entry has
no deviation and gets none. In mode ``official`` the weights leave as they are, and with them ``s(w_m)``, which the
server needs to draw the noise.

This is no differential privacy: nothing is clipped or accounted for, and the noise follows from the recipe's seed, so
that a run can be repeated; whoever knows the seed can draw it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.core.seeds import generator_for
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork


def noisy_names(network: SegmentationNetwork) -> list[str]:
    """Names of the weights that get noise: parameters but biases, norm layers, frozen ones and single numbers."""
    quiet = network.norm_names() | network.frozen()
    return [
        name
        for name, parameter in network.named_parameters(remove_duplicate=False)
        if name not in quiet and "bias" not in name.rpartition(".")[2] and parameter.numel() > 1
    ]


@component
class WeightNoise(Component):
    """Adds Gaussian noise to the sites' weights, in proportion to each tensor's spread."""

    name = "weight_noise"
    level = "update"
    paper = "Lu et al., Medical Image Analysis 2022"
    equations = (
        "HistoFL, client: sites send w_m + N(0, z^2 s(w_m)^2), s = standard deviation of a tensor's entries",
        "HistoFL, official: sites send w_m, the server adds sum_m N(0, z^2 s(w_m)^2) to their mean",
    )
    strength = "noise_level"

    class Settings(ComponentSettings):
        """A hundredth of a tensor's spread, at the site."""

        noise_level: float = Field(
            0.01, ge=0, description="z: the noise over the spread of a tensor; 0 switches it off"
        )
        noise_mode: Literal["client", "official"] = Field(
            "client", description="on what leaves a site, or at the server as in the released code"
        )

    @property
    def _at_server(self) -> bool:
        return bool(self.settings.noise_level > 0 and self.settings.noise_mode == "official")

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """Nothing, or in mode ``official`` one number for every tensor that gets noise."""
        if not self._at_server:
            return ()
        what = "standard deviation of each weight tensor"
        return (Shared("deviations", (len(noisy_names(network)),), what, at_least=0),)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Find the tensors, those of all components among them."""
        self._names = noisy_names(site.network)

    def on_update(self, update: Update) -> Update:
        """Equation 1, or in mode ``official`` the deviations ``(tensor,)`` beside the weights as they are.

        What stays at the site has no place in ``update``; its deviation is given as 0.
        """
        if not self.settings.noise_level:
            return update
        weights = update.weights
        deviations = torch.tensor([float(weights[n].float().std()) if n in weights else 0.0 for n in self._names])
        if self._at_server:
            return replace(update, shared=update.shared | {self.name: {"deviations": deviations}})
        noisy = dict(weights)
        self._add_noise(noisy, self._names, deviations, update.site, update.round)
        return replace(update, weights=noisy)

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """In mode ``official``: every site's noise on the new weights, whatever the site's share in the mean."""
        if self._at_server:
            names = noisy_names(server.network)
            for site, tensors in shared.items():
                self._add_noise(server.weights, names, tensors["deviations"], site, server.round)
        return {}

    def _add_noise(self, weights: Tensors, names: list[str], deviations: Tensor, site: str, round_number: int) -> None:
        """Replace the named tensors that are there by noisy ones; ``deviations`` is ``(name,)``."""
        generator = generator_for(self.context.seed, site, round_number, self.name)
        for name, deviation in zip(names, deviations.tolist(), strict=True):
            if name in weights:
                clean = weights[name]
                noise = torch.randn(clean.shape, generator=generator) * (self.settings.noise_level * deviation)
                weights[name] = clean + noise.to(clean.dtype)
