"""FedAvg's aggregation.

Paper: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017,
algorithm 1: ``w = sum_m (n_m / n) w_m``. The published systems differ in the weights: ``samples`` is the paper's,
``uniform`` is what HarmoFL, FedFA and FedBN run.

FSF3A's adaptive scale-aware weighted aggregation (ASWA), eq. 12, is ``samples`` to the letter. What FSF3A calls FedAvg,
where all sites count the same, is ``uniform``. For sites of one size the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update


@component
class WeightedMean(Component):
    """The mean of the sites' weights, by number of training samples or uniform."""

    name = "weighted_mean"
    level = "aggregation"
    paper = "McMahan et al., AISTATS 2017"
    equations = ("FedAvg algorithm 1, FSF3A eq. 12 (ASWA): w = sum_m (n_m / n) w_m",)
    aggregates = True
    streams = True

    class Settings(ComponentSettings):
        """``weighting``: ``samples`` (n_m / n) or ``uniform`` (1 / M)."""

        weighting: Literal["samples", "uniform"] = "samples"

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One pass over the updates."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update in updates:
            weight = float(update.samples) if self.settings.weighting == "samples" else 1.0
            mean.add(update.weights, weight, update.samples)
        return mean.result(server.previous)
