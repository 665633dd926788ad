"""FGASL's generalisation-aware aggregation (GAA).

Paper: *FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation*, Medical Image Analysis.
With ``p_g`` the probabilities of the received model and ``p_k`` those of site k's trained one on the site's images:

(4) ``G_k = KL(p_g || p_k)``                                       mean over images, pixels and classes
(5) ``a_k <- a_k + d_r (G_k - mean G) / max_j (G_j - mean G)``,  ``d_r = d (1 - r / R)``

then weights are clipped to [0, 1] and divided by their sum; the first round has ``a_k = 1 / K``, and an update acts
from the next round on. The released code does not centre the gaps: ``a_k + d_r G_k / max_j |G_j|``
(``rule = "official"``).

Departures: the paper gives no ``d``; the released one is 0.05 times 1/3 for three sites, here ``0.05 / K``. Where all
gaps are equal (one site among them) weights stay. A gap that is not finite counts as the mean of the others, with a
warning. A site that is absent keeps its weight, and those that answer share the round among them. Weights all at 0
become equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Literal

import torch
from pydantic import Field

from polyclinic.components.aggregation.mean import StreamingMean
from polyclinic.components.base import Component, ComponentSettings, Shared
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.evaluation.inference import evaluating
from polyclinic.federation.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.semi.losses import divergence
from polyclinic.semi.teachers import Remembered, probabilities

_EQUAL = 1e-12


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

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """One number."""
        what = "how far the trained model's outputs are from the received model's (KL)"
        return (Shared("gap", (), what, finite=False),)

    @torch.no_grad()
    def share(self, site: SiteRound) -> Tensors:
        """Equation 4 over all training images, labelled or not, as they are."""
        remembered = Remembered(site, site.frozen(), site.network.classes)
        total, count = torch.zeros((), dtype=torch.float64, device=site.device), 0
        with evaluating(site.network):
            for indices, images, _ in site.batches():
                own = probabilities(site.network, images)
                total += divergence(remembered(indices, images), own)
                count += own.numel()
        return {"gap": (total / max(1, count)).float()}

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """The mean with the weights that the rounds before have made."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update in updates:
            mean.add(update.weights, self._weight(update.site, server), update.samples)
        return mean.result(server.previous)

    def _weight(self, site: str, server: ServerRound) -> float:
        key = f"weight/{site}"
        return float(self.state[key]) if key in self.state else 1 / len(server.sites)

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 5, for the sites of the round."""
        gaps = self._finite({site: float(tensors["gap"]) for site, tensors in shared.items()}, server)
        centre = sum(gaps.values()) / max(1, len(gaps)) if self.settings.rule == "paper" else 0.0
        moves = {site: gap - centre for site, gap in gaps.items()}
        largest = max((move if self.settings.rule == "paper" else abs(move) for move in moves.values()), default=0.0)
        pace = 0.05 / len(server.sites) if self.settings.pace is None else self.settings.pace
        pace *= 1 - server.round / server.rounds
        weights = {site: self._weight(site, server) for site in server.sites}
        if largest > _EQUAL:
            for site, move in moves.items():
                weights[site] = min(1.0, max(self.settings.least, weights[site] + pace * move / largest))
        total = sum(weights.values())
        for site, weight in weights.items():
            share = weight / total if total > 0 else 1 / len(weights)
            self.state[f"weight/{site}"] = torch.tensor(share, dtype=torch.float64)
        return {}

    def _finite(self, gaps: dict[str, float], server: ServerRound) -> dict[str, float]:
        good = [gap for gap in gaps.values() if isfinite(gap)]
        for site, gap in gaps.items():
            if not isfinite(gap):
                server.warn(f"gaa: the gap of {site} is {gap}; it counts as the mean of the others.")
        middle = sum(good) / len(good) if good else 0.0
        return {site: gap if isfinite(gap) else middle for site, gap in gaps.items()}
