"""FGASL's generalisation-aware aggregation (GAA).

Paper: *FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation*, Medical Image Analysis. A
larger gap between a site's model and the received one stands for a site that the global model serves badly, and earns
the site more weight. With ``p_g`` the probabilities of the received model and ``p_k`` those of site k's trained one on
all of the site's training images, labelled or not, as they are:

(4) ``G_k = KL(p_g || p_k)``                                       mean over images, pixels and classes
(5) ``a_k <- a_k + d_r (G_k - mean G) / max_j (G_j - mean G)``,  ``d_r = d (1 - r / R)``

then weights are clipped to [0, 1] and divided by their sum. The first round has ``a_k = 1 / K``, and the update of a
round acts from the next one on. The released code does not centre the gaps: ``a_k + d_r G_k / max_j |G_j|``
(``rule = "official"``).

Departures: the paper gives no ``d``; the released one is 0.05 times 1/3 for three sites, here ``0.05 / K``. Where all
gaps are equal (one site among them) weights stay. A gap that is not finite counts as the mean of the others, with a
warning. With sites absent, mean and maximum run over those that answered, which share the round among them; the others
wait with the weight they had, scaled with all. Weights all at 0 become equal. Images larger than what the network
trains on go through it in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Literal

import torch
from pydantic import Field

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.components.toolbox.unlabelled.masked_losses import divergence
from polyclinic.components.toolbox.unlabelled.teachers import StaticTeacher, careful_probabilities
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork

_EQUAL = 1e-12
_LEAST_GAP = -1e-3  # no divergence is below 0, but rounded probabilities, which are clipped too, do not sum to 1
# Stands for a weight of 0: nothing beside any other in double precision, but where no other answers, an equal share.
_NOTHING = 1e-200


@component
class Gaa(Component):
    """Gives more weight to sites whose training moves the model's outputs far from the received model's."""

    name = "gaa"
    level = "aggregation"
    paper = "FedSemiDG, Medical Image Analysis"
    equations = (
        "FGASL eq. 4: G_k = KL(p_g || p_k)",
        "FGASL eq. 5: a_k <- a_k + d_r (G_k - mean G) / max_j (G_j - mean G)",
    )
    aggregates = True
    streams = True

    class Settings(ComponentSettings):
        """The paper's centred rule."""

        rule: Literal["paper", "official"] = Field("paper", description="gaps about their mean, or as they are")
        pace: float | None = Field(None, ge=0, description="d of the first round; by default 0.05 / number of sites")
        least: float = Field(0.0, ge=0, lt=1, description="the smallest weight of a site before the weights are scaled")

    @property
    def depends_on_rounds(self) -> bool:
        """The pace falls to 0 over all rounds."""
        return True

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """One number."""
        what = "how far the trained model's outputs are from the received model's (KL)"
        return (Shared("gap", (), what, finite=False, at_least=_LEAST_GAP),)

    def share(self, site: SiteRound) -> Tensors:
        """Equation 4; the received model's outputs are those of the static teacher, where it has seen the images."""
        window = self.context.image_size
        static = StaticTeacher(site, window)
        total, count = 0.0, 0
        for indices, images, _ in site.batches():
            own = careful_probabilities(site.network, images, window)
            total += divergence(static.known(indices, images, keep=False), own)
            count += own.numel()
        return {"gap": torch.tensor(total / max(1, count), dtype=torch.float32)}

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """The mean with the weights that the rounds before have made."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update in updates:
            mean.add(update.weights, max(_NOTHING, self._weight(update.site, server)), update.samples)
        return mean.result(server.previous)

    def _weight(self, site: str, server: ServerRound) -> float:
        key = f"weight/{site}"
        return float(self.state[key]) if key in self.state else 1 / len(server.sites)

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 5, for the sites of the round. The record gets the gaps, and the weights of both rules."""
        gaps = self._finite({site: float(tensors["gap"]) for site, tensors in shared.items()}, server)
        by_rule = {rule: self._moved(server, gaps, rule) for rule in ("paper", "official")}
        for site, weight in by_rule[self.settings.rule].items():
            self.state[f"weight/{site}"] = torch.tensor(weight, dtype=torch.float64)
        server.notes[self.name] = {"gap": gaps} | {f"weight/{rule}": weights for rule, weights in by_rule.items()}
        return {}

    def _moved(self, server: ServerRound, gaps: dict[str, float], rule: str) -> dict[str, float]:
        """The next weights of all sites by one of the rules."""
        centre = sum(gaps.values()) / max(1, len(gaps)) if rule == "paper" else 0.0
        moves = {site: gap - centre for site, gap in gaps.items()}
        largest = max((move if rule == "paper" else abs(move) for move in moves.values()), default=0.0)
        pace = 0.05 / len(server.sites) if self.settings.pace is None else self.settings.pace
        pace *= 1 - server.round / server.rounds
        weights = {site: self._weight(site, server) for site in server.sites}
        if largest > _EQUAL:
            for site, move in moves.items():
                weights[site] = min(1.0, max(self.settings.least, weights[site] + pace * move / largest))
        total = sum(weights.values())
        return {site: weight / total if total > 0 else 1 / len(weights) for site, weight in weights.items()}

    def _finite(self, gaps: dict[str, float], server: ServerRound) -> dict[str, float]:
        good = [gap for gap in gaps.values() if isfinite(gap)]
        for site, gap in gaps.items():
            if not isfinite(gap):
                server.warn(f"gaa: the gap of {site} is {gap}; it counts as the mean of the others.")
        middle = sum(good) / len(good) if good else 0.0
        return {site: gap if isfinite(gap) else middle for site, gap in gaps.items()}
