"""RSCFed's random sampling consensus: means of small groups of sites, and the mean of those.

Paper: Liang et al., *RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning*, CVPR 2022. In every round
``groups`` groups of ``size`` sites are drawn, each without repetition. In a group, with ``n_i`` samples of ``N``:

(1) ``w' = sum_i (n_i / N) w_i``,   ``d_i = sum over parameter tensors of ||w_i - w'||_2``
(2) ``a_i = (n_i / N) exp(-beta d_i / n_i)``, divided by their sum;   ``w_g = sum_i a_i w_i``
(3) ``w = mean_g w_g``

Departures: ``size`` is at most the number of sites that answered, and a site in several groups trains once: in the
released code it trains once for each. There ``beta`` is 1 (100 in its commands) where a site of the group has labels,
10000 elsewhere, and sites with labels can weigh more; here every site may have both kinds of images and ``beta`` is one
setting. There running statistics count in ``d_i`` too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update


@component
class Consensus(Component):
    """Averages random groups of sites, trusts those near their group's mean more, and averages the groups."""

    name = "consensus"
    level = "aggregation"
    paper = "Liang et al., CVPR 2022"
    equations = (
        "RSCFed: a_i = (n_i / N) exp(-beta d_i / n_i) in a random group",
        "RSCFed: w = mean over groups of sum_i a_i w_i",
    )
    aggregates = True

    class Settings(ComponentSettings):
        """For three sites: three groups of two."""

        groups: int = Field(3, ge=1, description="random groups of sites in a round")
        size: int = Field(2, ge=1, description="sites of a group; 5 in the paper, whose federation has ten")
        beta: float = Field(1.0, ge=0, description="how fast trust falls with the distance to the group's mean")

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """Equations 1 to 3; the groups come from the round's generator."""
        updates = list(updates)
        size = min(self.settings.size, len(updates))
        shares = torch.zeros(len(updates), dtype=torch.float64)
        for _ in range(self.settings.groups):
            members = torch.randperm(len(updates), generator=server.generator)[:size].tolist()
            shares[members] += self._trust(server, [updates[m] for m in members])
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update, share in zip(updates, shares.tolist(), strict=True):
            mean.add(update.weights, share, update.samples)
        return mean.result(server.previous)

    def _trust(self, server: ServerRound, group: list[Update]) -> torch.Tensor:
        """Weights ``(member,)`` of a group, which sum to 1."""
        samples = torch.tensor([max(1, update.samples) for update in group], dtype=torch.float64)
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update, count in zip(group, samples.tolist(), strict=True):
            mean.add(update.weights, count, update.samples)
        middle = mean.result(server.previous)
        names = server.parameters
        distances = [sum(float((u.weights[n] - middle[n]).double().norm()) for n in names) for u in group]
        # Shifted by the largest, so that no exponent underflows for all.
        logs = samples.log() - self.settings.beta * torch.tensor(distances, dtype=torch.float64) / samples
        trust: torch.Tensor = logs.softmax(0)
        return trust
