"""The coordinate-wise median of the sites' models.

Paper: Yin et al., *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, ICML 2018, definition 1
and algorithm 1, option I. For every coordinate ``k`` of the weights:

``w^k = med{ w_m^k : m = 1 ... M }``

As long as fewer than half of the sites misbehave, every coordinate stays within the range of what honest sites sent.

Departures: the paper takes the median of gradients, here it is that of the trained weights; the median of ``w_m - w^r``
added to ``w^r`` is the same. Of an even number of sites it is the mean of the two in the middle. Every site counts the
same: numbers of samples, which a site could invent, are ignored. Floating buffers are treated like weights;
``policies.buffers`` holds, and integers are those of the site with the most samples.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.coordinate_wise import coordinate_wise
from polyclinic.exchange.messages import Tensors, Update


@component
class Median(Component):
    """The median over the sites of every single weight; a minority of bad updates cannot pull it far."""

    name = "median"
    level = "aggregation"
    paper = "Yin et al., ICML 2018"
    equations = ("Yin et al. definition 1: w^k = median over sites of w_m^k, for every coordinate k",)
    aggregates = True

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One sort over the sites for each weight tensor."""
        return coordinate_wise(server, list(updates), _middle)


def _middle(values: Tensor) -> Tensor:
    """The median ``(value,)`` of sorted values ``(site, value)``."""
    count = len(values)
    return (values[(count - 1) // 2] + values[count // 2]) / 2
