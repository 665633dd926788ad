"""FedHEAL's aggregation: updates that keep their direction, and more weight for sites that move far.

Paper: Chen, Huang, Ye, *Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity*, CVPR
2024. With the update ``D_m = w^r - w_m`` of site m, element by element:

(1) ``h_m``  = share of the site's earlier rounds with ``D_m >= 0``
(2) ``c_m``  = ``h_m`` where ``D_m >= 0``, else ``1 - h_m``              consistency of the sign of this round
(3) ``k_m``  = 1 where ``c_m > threshold``, else 0                       the mask; all ones in a site's first round
(4) ``d_m``  = sum over weight tensors of ``||k_m D_m||_2``
(5) ``g_m   <- (1 - beta) g_m + beta d_m / sum_j d_j``,  ``a_m <- a_m + g_m``    start: ``g_m = 0, a_m = 1 / M``
(6) ``w^{r+1} = w^r - sum_m a_m k_m D_m / sum_m a_m k_m``                where every site is masked, ``w^r`` stays

One pass over the updates is enough although (5) needs all distances: ``a_m`` is ``A_m + B d_m``, where only the common
factor ``B`` is unknown until the end, so that two sums for ``A_m`` and two for ``d_m`` hold all that (6) needs.

Departures: (6) is computed as the mean of ``w_m`` over the unmasked sites, which is the same. Buffers are averaged with
``a_m`` and without masks; the released code masks them too (``mask_buffers``). ``h_m`` is kept as a count, and rounds
are counted site by site, so that a site may skip rounds or join late; the released code counts rounds of the federation
and its history is never initialised. ``M`` is the number of sites of the federation (released: of a round), and the sum
in (5) runs over the sites of the round (released: over the last distances of all). Where nothing moved, the fraction in
(5) is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update


@dataclass(frozen=True)
class Layout:
    """Named tensors as one long row, in a fixed order."""

    like: Tensors

    def flat(self, weights: Mapping[str, Tensor]) -> Tensor:
        """All values, ``(value,)``."""
        return torch.cat([torch.zeros(0), *(weights[name].reshape(-1) for name in self.like)])

    def split(self, row: Tensor) -> Tensors:
        """The row as named tensors of the old shapes and types."""
        parts = torch.split(row, [tensor.numel() for tensor in self.like.values()])
        pairs = zip(self.like.items(), parts, strict=True)
        return {name: part.reshape(tensor.shape).to(tensor.dtype) for (name, tensor), part in pairs}

    def where(self, names: frozenset[str]) -> Tensor:
        """Which values belong to these names, ``(value,)``."""
        return self.flat({n: torch.full((t.numel(),), n in names) for n, t in self.like.items()}).bool()


@component
class ConsistentUpdates(Component):
    """Averages only updates that agree with a site's own past; sites that move far gain weight."""

    name = "consistent_updates"
    level = "aggregation"
    paper = "Chen et al., CVPR 2024"
    equations = (
        "FedHEAL: k_m = [consistency of sign(w^r - w_m) > threshold]",
        "FedHEAL: a_m <- a_m + g_m, g_m <- (1 - beta) g_m + beta d_m / sum d",
        "FedHEAL: w = w^r - sum_m a_m k_m (w^r - w_m) / sum_m a_m k_m",
    )
    aggregates = True
    streams = True

    class Settings(ComponentSettings):
        """Those of the released code, but for buffers."""

        threshold: float = Field(0.3, ge=-1, lt=1, description="consistency that an update must exceed; -1: no masks")
        beta: float = Field(0.4, ge=0, le=1, description="pace of the sites' weights; 0 keeps them uniform")
        mask_buffers: bool = Field(False, description="mask buffers too, as the released code does")

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One pass over the updates, then equations 5 and 6."""
        copied = server.buffers if server.buffer_policy == "largest" else frozenset()
        floating = {n: t for n, t in server.previous.items() if t.is_floating_point() and n not in copied}
        # Sorted, because a checkpoint that was read again has its names in another order, and the history has none.
        layout = Layout(dict(sorted(floating.items())))
        start, buffers = layout.flat(server.previous), layout.where(server.buffers)
        others = StreamingMean(server.buffers, server.buffer_policy)
        # Row 0 has the factor A_m, row 1 the factor d_m.
        sums, totals = (torch.zeros(2, len(start), dtype=torch.float64) for _ in range(2))
        distances: dict[str, float] = {}
        for update in updates:
            values = layout.flat(update.weights)
            passed = self._mask(update.site, start >= values)
            if not self.settings.mask_buffers:
                passed |= buffers
            moved = layout.split((start - values) * passed)
            norms = [tensor.double().norm() for name, tensor in moved.items() if name not in server.buffers]
            distances[update.site] = float(sum(norms))
            for row, factor in enumerate((self._known(update.site, server), distances[update.site])):
                sums[row].add_(values * passed, alpha=factor)
                totals[row].add_(passed, alpha=factor)
            rest = {name: tensor for name, tensor in update.weights.items() if name not in layout.like}
            others.add(rest, 1.0, update.samples)
        pace = self._update_weights(server, distances)
        total = totals[0] + pace * totals[1]
        mean = (sums[0] + pace * sums[1]) / total
        return others.result(server.previous) | layout.split(torch.where(total > 0, mean, start.double()))

    def _mask(self, site: str, falls: Tensor) -> Tensor:
        """Equations 1 to 3 from the signs ``(value,)`` of the round, which then join the history."""
        if self.settings.threshold < 0:
            return torch.ones_like(falls)
        counted, past = f"falls/{site}", f"rounds/{site}"
        rounds = int(self.state[past]) if past in self.state else 0
        # Two bytes a weight and site; longer runs than they can count are possible, if not likely.
        kind = torch.int16 if self.context.training.rounds < 2**15 else torch.int32
        before = self.state.get(counted, torch.zeros(len(falls))).to(kind)
        # The small number keeps a share of exactly the threshold from passing: 0.29 * 100 is a little less than 29.
        needed = floor(self.settings.threshold * rounds + 1e-9) + 1
        agreeing = torch.where(falls, before, rounds - before)
        self.state[counted], self.state[past] = before + falls, torch.tensor(rounds + 1)
        return agreeing >= needed if rounds else torch.ones_like(falls)

    def _known(self, site: str, server: ServerRound) -> float:
        """``A_m``: what the site's new weight would be if it had not moved."""
        kept: float = 1 - self.settings.beta
        return self._number("weight", site, 1 / len(server.sites)) + kept * self._number("gain", site)

    def _number(self, what: str, site: str, start: float = 0.0) -> float:
        key = f"{what}/{site}"
        return float(self.state[key]) if key in self.state else start

    def _update_weights(self, server: ServerRound, distances: Mapping[str, float]) -> float:
        """Equation 5 for the sites of the round; returns its common factor ``beta / sum_j d_j``."""
        total = sum(distances.values())
        pace = self.settings.beta / total if total > 0 else 0.0
        for site, distance in distances.items():
            gain = (1 - self.settings.beta) * self._number("gain", site) + pace * distance
            weight = self._number("weight", site, 1 / len(server.sites)) + gain
            self.state[f"weight/{site}"] = torch.tensor(weight, dtype=torch.float64)
            self.state[f"gain/{site}"] = torch.tensor(gain, dtype=torch.float64)
        return pace
