"""FedMA with fixed width: channels are matched to those of the global model before they are averaged.

Paper: Wang et al., *Federated Learning with Matched Averaging*, ICLR 2020. The channels of a layer have no order: two
sites may learn the same filter at different places, and the mean of the two is neither. Layer by layer from the input,
with ``f_mj`` what site ``m`` learned for channel ``j`` (its filter, over inputs that are matched already, bias, scale
and shift of its norm) and ``f_i`` that of the global model before the round:

(1) ``pi_m = argmin over permutations of sum_i ||f_i - f_m,pi(i)||^2``     the assignment problem, by SciPy
(2) ``w^l = sum_m (n_m / n) Pi_m w_m^l Pi_m,previous^T``                   the mean of matched weights

Covers the network ``unet`` in 2D and 3D, with every norm and both kinds of upsampling. The channels of a group are
those of one convolution; skip connections, the concatenations of the decoder, the norms with their running statistics
and the head follow (``toolbox/channel_groups.py``). Under group norm only orders are tried that leave its blocks
together. Refused are other networks, components that put weights into the network (FSR, projections) and components
that keep parameters at the sites (FedBN): what stays there would be in another order than what comes back.

Departures. The paper's matching is Bayesian (BBP-MAP), may widen layers, and sends every layer back to the sites, which
go on training the later ones: as many exchanges in a round as there are layers. Its code knows VGG and LSTM. Here all
layers are matched in one exchange, at fixed width, with the global model as the reference. Sites that start from one
model rarely change the order of their channels, so this is often FedAvg; an order that is as good as another is left
alone. ``moved`` in the record is the share of a site's channels that changed places. Where one did, what a site keeps
in its own order (momenta, MOON's old models, SCAFFOLD's controls, running statistics under ``policies.buffers =
"keep"``) no longer fits; a sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import BuiltMethod, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.channel_groups import ChannelGroup, channel_groups
from polyclinic.components.toolbox.coordinate_wise import warn_once
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors, Update


def best_order(gain: Tensor, blocks: int) -> Tensor:
    """The order ``(channel,)`` with the largest sum of ``gain[i, order[i]]``; the given one if none is better.

    ``gain`` is ``(channel, channel)``. With fewer ``blocks`` than channels only orders count that keep blocks together.
    """
    from scipy.optimize import linear_sum_assignment  # here, because it takes a while to load

    size = len(gain) // blocks
    by_block = gain.reshape(blocks, size, blocks, size).transpose(1, 2).numpy()
    if size == 1:
        inside, total = np.zeros((blocks, blocks, 1), dtype=np.int64), by_block[:, :, 0, 0]
    else:
        inside = np.array([[linear_sum_assignment(pair, maximize=True)[1] for pair in row] for row in by_block])
        total = np.take_along_axis(by_block, inside[..., None], 3).sum((2, 3))
    chosen = linear_sum_assignment(total, maximize=True)[1]
    order = torch.from_numpy(size * chosen[:, None] + inside[np.arange(blocks), chosen]).flatten()
    same = torch.arange(len(gain))
    better = gain[same, order].sum() - gain.diagonal().sum()
    return order if better > 1e-12 * gain.abs().sum() else same


@component
class FedMa(Component):
    """Brings the channels of every site's U-Net into the order of the global model's, then averages."""

    name = "fedma"
    level = "aggregation"
    paper = "Wang et al., ICLR 2020"
    equations = (
        "FedMA: pi_m = argmin sum_i ||f_i - f_m,pi(i)||^2, layer by layer",
        "FedMA: w^l = sum_m (n_m / n) Pi_m w_m^l Pi_m,previous^T",
    )
    aggregates = True
    streams = True
    _groups: list[ChannelGroup]

    class Settings(ComponentSettings):
        """The paper's weights."""

        weighting: Literal["samples", "uniform"] = Field("samples", description="of the mean: n_m / n, or 1 / M")

    def check(self, built: BuiltMethod) -> None:
        """Understand the network, or refuse it."""
        self._groups = channel_groups(built.network)
        learned = {place.tensor for group in self._groups for place in group.learned}
        kept = sorted(learned - built.exchanged)
        if kept:
            raise PolyclinicError(
                f"fedma: '{kept[0]}' stays at the sites and would not follow when channels change places; take a "
                "method that keeps no weights."
            )

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """Equations 1 and 2, one update at a time."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        moved: dict[str, float] = {}
        for update in updates:
            weights, moved[update.site] = self._matched(server.previous, update.weights)
            share = float(update.samples) if self.settings.weighting == "samples" else 1.0
            mean.add(weights, share, update.samples)
        server.notes[self.name] = {"moved": moved}
        if any(moved.values()):
            site = next(site for site, share in moved.items() if share)
            warn_once(
                self, server, f"{moved[site]:.0%} of the channels of {site} changed places; what the site keeps in its "
                "own order, such as an optimiser's momenta, no longer fits (policies.optimizer_state = reset).",
            )  # fmt: skip
        return mean.result(server.previous)

    def _matched(self, reference: Tensors, weights: Tensors) -> tuple[Tensors, float]:
        """A model in the reference's order of channels, and the share of its channels that changed places."""
        weights, moved = dict(weights), 0
        for group in self._groups:
            # The squares in (1) are the same in every order; what is left is twice the inner product.
            order = best_order(group.features(reference) @ group.features(weights).T, group.blocks)
            places = int((order != torch.arange(group.size)).sum())
            if places:
                group.reorder(weights, order)
            moved += places
        return weights, moved / sum(group.size for group in self._groups)
