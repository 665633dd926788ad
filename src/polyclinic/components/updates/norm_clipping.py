"""Updates whose norm is bounded before they are aggregated.

Paper: Sun et al., *Can You Really Backdoor Federated Learning?*, arXiv:1911.07963, 2019 (norm thresholding). With
the difference ``D_m = w_m - w^r`` of site ``m`` and the bound ``N``, any aggregation gets

``w_m' = w^r + D_m / max(1, ||D_m|| / N)``

A site that multiplies its update, so that it outweighs the others, gains nothing by it.

Departures: the paper gives ``N`` as a number that is known beforehand. By default it is the median of this round's
norms here, because it depends on network, learning rate and round; models that did not move do not count in it. Norms
are over parameters alone. Buffers, which are no differences, pass as they came, and so do integers and whatever
components share. The paper's second defence, noise on the aggregate, is not here.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from statistics import median
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Update


@component
class NormClipping(Component):
    """Scales updates down to a largest norm before any aggregation."""

    name = "norm_clipping"
    level = "update"
    paper = "Sun et al., 2019"
    equations = ("Sun et al.: w_m' = w^r + (w_m - w^r) / max(1, ||w_m - w^r|| / N)",)

    class Settings(ComponentSettings):
        """The median of the round."""

        norm: Annotated[float, Field(gt=0)] | Literal["median"] = Field(
            "median", description="N: the largest norm of an update, or the median of the round's norms"
        )

    def screen(self, server: ServerRound, updates: list[Update]) -> list[Update]:
        """Clip those that are too long; norms, and the factors of those that were clipped, go into the record."""
        norms = {update.site: _norm(server, update) for update in updates}
        bound = self._bound(list(norms.values()))
        factors = {site: bound / norm for site, norm in norms.items() if norm > bound}
        server.notes[self.name] = {"norm": norms, "factor": factors}
        return [_scaled(server, u, factors[u.site]) if u.site in factors else u for u in updates]

    def _bound(self, norms: list[float]) -> float:
        if self.settings.norm != "median":
            return float(self.settings.norm)
        return median([norm for norm in norms if norm > 0] or [0.0])


def _difference(server: ServerRound, update: Update, name: str) -> Tensor:
    return update.weights[name].double() - server.previous[name]


def _norm(server: ServerRound, update: Update) -> float:
    """Of all parameters of an update as one vector."""
    return sqrt(sum(float(_difference(server, update, name).square().sum()) for name in server.parameters))


def _scaled(server: ServerRound, update: Update, factor: float) -> Update:
    """The update with a shorter difference; a new one, because the old may still be in use."""
    clipped = {
        name: (server.previous[name] + factor * _difference(server, update, name)).to(update.weights[name].dtype)
        for name in server.parameters
    }
    return replace(update, weights=update.weights | clipped)
