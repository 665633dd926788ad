"""Krum and Multi-Krum: the model, or the few models, nearest to the others.

Paper: Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NeurIPS 2017.
With ``n`` updates, at most ``f`` of them bad, and ``i -> j`` for the ``n - f - 2`` updates nearest to ``w_i``:

(1) ``s(i) = sum_{i -> j} ||w_i - w_j||^2``
(2) ``w = w_i`` with the smallest ``s(i)``, of equals the first; Multi-Krum: the mean of the ``m`` with the smallest

The paper's promise needs ``n >= 2f + 3``, and by default ``f`` is the largest number that allows.

Departures: trained weights instead of gradients (the differences are the same). Distances are over parameters: buffers
hold the sites' own intensities and would drown the rest. Of fewer than three updates none is nearer to the others, so
all of them are averaged, with a warning. Where ``f`` is too large for the updates that came, at least one neighbour
counts, with a warning. Every site counts the same: numbers of samples, which a site could invent, are ignored. Buffers
and integers come from the chosen sites alone, by ``policies.buffers`` as in their mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.coordinate_wise import side_by_side, warn_once
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update


@component
class Krum(Component):
    """Takes the site's model that is nearest to its neighbours, or the mean of a few such models."""

    name = "krum"
    level = "aggregation"
    paper = "Blanchard et al., NeurIPS 2017"
    equations = (
        "Krum: s(i) = sum over the n - f - 2 nearest j of ||w_i - w_j||^2",
        "Krum: w = w_i with the smallest s(i); Multi-Krum: mean of the m with the smallest",
    )
    aggregates = True

    class Settings(ComponentSettings):
        """Krum, with as many bad sites as the theory allows."""

        byzantine: int | None = Field(
            None, ge=0, description="f: bad sites at most; by default the largest with n >= 2f + 3"
        )
        keep: int = Field(1, ge=1, description="m: models that are averaged; 1 is Krum, more Multi-Krum")

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """Equations 1 and 2; scores and choice go into the record."""
        updates = list(updates)
        bad = self._bad(server, len(updates))
        scores = _scores(_squared_distances(updates, server.parameters), bad)
        keep = self.settings.keep if len(updates) > 2 else len(updates)
        chosen = set(scores.argsort(stable=True)[:keep].tolist())
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for number, update in enumerate(updates):
            if number in chosen:
                mean.add(update.weights, 1.0, update.samples)
        sites = [update.site for update in updates]
        server.notes[self.name] = {
            "score": dict(zip(sites, scores.tolist(), strict=True)),
            "chosen": {site: float(number in chosen) for number, site in enumerate(sites)},
        }
        return mean.result(server.previous)

    def _bad(self, server: ServerRound, count: int) -> int:
        """``f``, and a warning where the theory promises nothing."""
        bad = max(0, (count - 3) // 2) if self.settings.byzantine is None else int(self.settings.byzantine)
        if count < 3:
            warn_once(self, server, f"of {count} updates none is nearer to the others; they are averaged.")
        elif count < 2 * bad + 3:
            warn_once(self, server, f"byzantine={bad} needs {2 * bad + 3} updates, and {count} came; nothing is sure.")
        elif self.settings.keep > count - bad:
            warn_once(self, server, f"keep={self.settings.keep} of {count} updates takes in some of {bad} bad ones.")
        return bad


def _squared_distances(updates: list[Update], names: list[str]) -> Tensor:
    """Between all pairs of updates, ``(site, site)``; not by products, which would lose small distances."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in names:
        for piece in side_by_side(updates, name):
            rows = piece.double()
            total += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def _scores(distances: Tensor, bad: int) -> Tensor:
    """Equation 1, ``(site,)``: each row's smallest distance is that to the update itself."""
    neighbours = max(1, len(distances) - bad - 2)
    return distances.sort(1).values[:, 1 : 1 + neighbours].sum(1)
