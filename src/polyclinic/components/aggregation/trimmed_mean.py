"""The coordinate-wise trimmed mean of the sites' models.

Paper: Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, ICML 2018, definition 2
and algorithm 1, option II. For every coordinate ``k`` of the weights, with ``b`` the share ``trim``:

``w^k = mean of { w_m^k : m = 1 ... M } without the floor(b M) largest and the floor(b M) smallest``

The share must be at least that of the sites that misbehave.

Departures: the paper trims gradients, here the trained weights are trimmed, which is the same but for the constant
``w^r``. It leaves open how ``b M`` is rounded; here it is rounded down, so that with few sites nothing may be left to
cut, and a warning says so. Every site counts the same: numbers of samples, which a site could invent, are ignored.
Floating buffers are treated like weights; ``policies.buffers`` holds, and integers are those of the site with the most
samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from pydantic import Field

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.coordinate_wise import coordinate_wise, warn_once
from polyclinic.exchange.messages import Tensors, Update


@component
class TrimmedMean(Component):
    """The mean over the sites of every single weight, without its largest and smallest values."""

    name = "trimmed_mean"
    level = "aggregation"
    paper = "Yin et al., ICML 2018"
    equations = ("Yin et al. definition 2: w^k = mean over sites of w_m^k without floor(trim M) at each end",)
    aggregates = True

    class Settings(ComponentSettings):
        """A tenth at each end."""

        trim: float = Field(0.1, ge=0, lt=0.5, description="share of the sites that is cut at each end; 0: plain mean")

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One sort over the sites for each weight tensor."""
        updates = list(updates)
        count = len(updates)
        cut = self._cut(count)
        if cut == 0 and self.settings.trim > 0:
            # 1 / count rounded up to two digits: the smallest share that a person would write.
            cure = f"trim={ceil(100 / count) / 100:g} would cut one" if count > 2 else "it takes three to cut one"
            warn_once(self, server, f"trim={self.settings.trim:g} cuts nothing of {count} updates; {cure} at each end.")
        return coordinate_wise(server, updates, lambda values: values[cut : count - cut].mean(0))

    def _cut(self, count: int) -> int:
        """How many values go at each end; the small number is for 0.29 * 100, which is a little less than 29."""
        return min(int(self.settings.trim * count + 1e-9), (count - 1) // 2)
