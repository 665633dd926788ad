"""PathFL's stratified similarity aggregation (SSA).

Paper: Zhang et al., *PathFL: Multi-alignment Federated Learning for pathology image segmentation*, Medical Image
Analysis 2025. No code was released. With ``g_m ~ N(mu_m, sigma_m^2)`` noise with the statistics of site ``m``'s images,
``phi_m^l(g_m)`` the output of stage ``l`` of its model, and ``c_mj^l = max(0, cos(phi_m^l(g_m), phi_j^l(g_j)))``:

(13) ``w^l = (1 / 2M) sum_m [ w_m^l + sum_{j != m} s_mj^l w_j^l ]``

Departures. As printed (13) has one more sum over ``j`` and its weights do not sum to 1. Two readings do: ``row``,
``s_mj = c_mj / sum_{k != m} c_mk``, keeps the factor ``1 / 2M``; ``global``, ``s_mj = c_mj / sum of all pairs`` without
the ``1 / M``, keeps the sentence on the total of all pairs. So ``a_j = (1 / M + (1 / M) sum_m s_mj) / 2`` or
``a_j = (1 / M + sum_m s_mj) / 2``, at least ``1 / 2M`` for every site; with two sites both are 1/2. Rows of zeros count
evenly. ``compare = "fedsoda"`` is the rule of the authors' FedSODA (ICASSP 2024): model ``m`` on ``g_m`` and ``g_j``.

The paper uploads ``g_m``. Here a site shares ``mu_m``, ``sigma_m`` of each channel, and the noise comes from the
recipe's seed and the round, so the server draws the same probes. All sites have the same noise (``shared_noise``),
which takes chance out of the cosines. The paper's distributed variant is ``where = "sites"``: sites run their own
probe and share the outputs, for a small probe; the server compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.aggregation.mean import StreamingMean
from polyclinic.components.aggregation.similarity import (
    Reading,
    Similarity,
    cosine,
    pairwise_products,
    products,
    stage_names,
    stage_outputs,
    stage_weights,
)
from polyclinic.components.base import Component, ComponentSettings, Shared
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.errors import PolyclinicError
from polyclinic.federation.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork, load_weights
from polyclinic.seeds import generator_for, seed_for

_ROOM = 2**30  # bytes of outputs that the server holds at once


@component
class Ssa(Component):
    """Weights each stage of a site's model by how alike its outputs on noise are to those of the other sites."""

    name = "ssa"
    level = "aggregation"
    paper = "Zhang et al., Medical Image Analysis 2025"
    equations = ("PathFL eq. 13: w^l = (1 / 2M) sum_m [w_m^l + sum_{j != m} s_mj^l w_j^l]",)
    aggregates = True

    class Settings(ComponentSettings):
        """The paper's comparison, normalised by rows, at the server."""

        reading: Reading = Field("row", description="how eq. 13 is made to sum to 1")
        compare: Literal["pathfl", "fedsoda"] = Field("pathfl", description="two models, or one model on two probes")
        probes: int = Field(4, ge=1, description="images of noise for a site and round")
        shared_noise: bool = Field(True, description="the same noise for all sites, before their mean and deviation")
        base: Literal["uniform", "samples"] = Field("uniform", description="the first half: 1 / M, or n_m / n")
        similarity: Similarity = Field("flat", description="one cosine over all probes, or the mean of one a probe")
        where: Literal["server", "sites"] = Field("server", description="who runs the probes")
        size: int | None = Field(
            None, ge=1, description="of a probe along each axis; default: the images', or what the sites can send"
        )

    def install(self, network: SegmentationNetwork) -> None:
        """Settle the probes' size: that of the training images, or a small one where outputs are sent."""
        chosen, step = self.settings, network.multiple
        if chosen.where == "sites" and chosen.compare == "fedsoda":
            raise PolyclinicError(
                "ssa(where=sites, compare=fedsoda): a site would need the other sites' probes; use where=server."
            )
        smallest = (2 * step,) * network.spatial_dims
        wanted = (chosen.size,) * network.spatial_dims if chosen.size else self.context.image_size
        if chosen.size is None and chosen.where == "sites":
            wanted = smallest
        self._size = tuple(-(-size // step) * step for size in wanted or smallest)

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """Two numbers of each channel, or the outputs of all stages on noise."""
        stages = stage_names(network)
        if self.settings.where == "server":
            what = "of all training images, channel by channel"
            names = {"mean": f"mean {what}", "deviation": f"standard deviation {what}"}
            return tuple(Shared(name, (network.channels,), what) for name, what in names.items())
        blank = torch.zeros(1, network.channels, *self._size, device=next(network.parameters()).device)
        return tuple(
            Shared(stage, (self.settings.probes, values.shape[1]), "output of this stage on noise")
            for stage, values in stage_outputs(network, blank, stages).items()
        )

    def share(self, site: SiteRound) -> Tensors:
        """The statistics, or the outputs of the trained model; the statistics are computed once."""
        if not self.state:
            self.state = _statistics(site)
        if self.settings.where == "server":
            return dict(self.state)
        probe = self._probe(site.round, site.site, self.state).to(site.device)
        return stage_outputs(site.network, probe, stage_names(site.network))

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """Equation 13: one weight for each site and stage."""
        updates, stages = list(updates), stage_names(server.network)
        samples = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        even = self.settings.base == "uniform" or not samples.any()
        base = torch.ones_like(samples) / len(samples) if even else samples / samples.sum()
        similarity = self._similarity(server, updates, stages)
        weights = stage_weights(similarity, base, self.settings.reading).tolist()
        members = server.network.stages()
        row_of = {name: row for row, stage in enumerate(stages) for name in members[stage]}
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for number, update in enumerate(updates):
            by_name = {name: weights[row_of[name]][number] for name in update.weights}
            mean.add(update.weights, by_name, update.samples)
        return mean.result(server.previous)

    def _similarity(self, server: ServerRound, updates: list[Update], stages: list[str]) -> Tensor:
        """``c`` of eq. 13 as ``(stage, site, site)``."""
        count, how = len(updates), self.settings.similarity
        found = torch.zeros(len(stages), count, count, dtype=torch.float64)
        if count < 2:
            return found
        if self.settings.where == "server":
            self._settle_kept(server, updates[0])
        if self.settings.compare == "fedsoda":
            for m in range(count):
                own = self._outputs(server, updates, m, m, stages)
                square = products(own, own)
                for j in (j for j in range(count) if j != m):
                    other = self._outputs(server, updates, m, j, stages)
                    found[:, m, j] = cosine(products(own, other), square, products(other, other), how)
            return found
        pairs = pairwise_products(lambda m: self._outputs(server, updates, m, m, stages), count, _ROOM)
        for (m, j), product in pairs.items():
            found[:, m, j] = found[:, j, m] = cosine(product, pairs[m, m], pairs[j, j], how)
        return found

    def _outputs(self, server: ServerRound, updates: list[Update], model: int, on: int, stages: list[str]) -> Tensors:
        """Outputs of a site's model on the probe of the same or another site."""
        shared = updates[on].shared[self.name]
        if self.settings.where == "sites":
            return shared
        load_weights(server.network, updates[model].weights)
        noise = self._probe(server.round, updates[on].site, shared)
        return stage_outputs(server.network, noise.to(server.device), stages)

    def _probe(self, round_number: int, site: str, statistics: Mapping[str, Tensor]) -> Tensor:
        """Noise ``(probes, channel, *size)`` with a site's mean and deviation, the same wherever it is drawn."""
        generator = generator_for(self.context.seed, "ssa", round_number, "" if self.settings.shared_noise else site)
        mean, deviation = (statistics[n].reshape(-1, *[1] * len(self._size)) for n in ("mean", "deviation"))
        return mean + deviation * torch.randn(self.settings.probes, len(mean), *self._size, generator=generator)

    def _settle_kept(self, server: ServerRound, update: Update) -> None:
        """Weights that stay at the sites are unknown here: give them initial values, not those of the last user."""
        network = server.network
        kept = set(network.state_dict()) - update.weights.keys() - network.frozen()
        if kept and server.round == 0:
            server.warn(
                f"ssa: {len(kept)} weights stay at the sites, '{min(kept)}' first; the server compares models with "
                "initial values in their place; ssa(where=sites) compares the whole models."
            )
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed_for(self.context.seed, "ssa", "kept"))
            for prefix, module in network.named_modules():
                own = {n.rpartition(".")[2] for n in kept if n.rpartition(".")[0] == prefix}
                for name in own:
                    getattr(module, name).zero_()
                if own and hasattr(module, "reset_parameters"):
                    module.reset_parameters()


@torch.no_grad()
def _statistics(site: SiteRound) -> Tensors:
    """Mean and deviation ``(channel,)`` of all pixels of the site's training images, with or without labels."""
    total, count = torch.zeros(2, site.network.channels, dtype=torch.float64), 0
    wide = torch.float32 if site.device.type == "mps" else torch.float64  # which has no doubles
    for _, images, _ in site.batches():
        values = images.transpose(0, 1).flatten(1)
        total += torch.stack([part.sum(1, dtype=wide) for part in (values, values.square())]).cpu()
        count += values.shape[1]
    mean, square = total / max(1, count)
    return {"mean": mean.float(), "deviation": (square - mean.square()).clamp_min(0).sqrt().float()}
