"""PathFL's stratified similarity aggregation (SSA).

Paper: Zhang et al., *PathFL: Multi-alignment Federated Learning for pathology image segmentation*, Medical Image
Analysis 2025. No code was released. With ``g_m ~ N(mu_m, sigma_m^2)`` noise with the statistics of site ``m``'s images,
``phi_m^l(g_m)`` the output of stage ``l`` of its model, and ``c_mj^l = max(0, cos(phi_m^l(g_m), phi_j^l(g_j)))``:

(13) ``w^l = (1 / 2M) sum_m [ w_m^l + sum_{j != m} s_mj^l w_j^l ]``

Departures. As printed (13) has one more sum over ``j`` and its weights do not sum to 1. Two readings do: ``row``,
``s_mj = c_mj / sum_{k != m} c_mk``, keeps the factor ``1 / 2M``; ``global``, ``s_mj = c_mj / sum of all pairs`` without
the ``1 / M``, keeps the sentence on the total of all pairs. So ``a_j = (1 / M + (1 / M) sum_m s_mj) / 2`` or
``a_j = (1 / M + sum_m s_mj) / 2``, at least ``1 / 2M`` for every site (``base = "samples"`` has ``n_j / n`` in place
of the first ``1 / M``); with two sites both are 1/2. Rows of zeros count evenly. ``compare = "fedsoda"`` is the rule of
the authors' FedSODA (ICASSP 2024): model ``m`` on ``g_m`` and ``g_j``.

The paper uploads ``g_m``. Here a site shares ``mu_m``, ``sigma_m`` of each channel, and the noise comes from the
recipe's seed and the round, so the server draws the same probes. All sites have the same noise (``shared_noise``),
which takes chance out of the cosines. The paper's distributed variant is ``where = "sites"``: sites run their own
probe and share the outputs, for a small probe; the server compares them.

With AFA the bottleneck is compared before eq. 12, which gives the features of all sites one mean and deviation and
would hide how far the models are apart; the authors' FedSODA, which has no AFA, reads the stage there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.stage_similarity import (
    Reading,
    Similarity,
    cosine,
    pairwise_products,
    products,
    stage_names,
    stage_outputs,
    stage_weights,
)
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.machine import widest_float
from polyclinic.core.seeds import generator_for, seed_for
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork, fresh_values, load_weights

_MAX_BYTES_HELD = 2**31  # of outputs, by the server at once: 16 sites of PathFL's network at 512x512
Outputs = Callable[[int, int, slice], Tensors]


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
        chosen, steps = self.settings, network.multiples
        if chosen.where == "sites" and chosen.compare == "fedsoda":
            raise PolyclinicError(
                "ssa(where=sites, compare=fedsoda): a site would need the other sites' probes; use where=server."
            )
        smallest = tuple(2 * step for step in steps)
        wanted = (chosen.size,) * network.spatial_dims if chosen.size else self.context.image_size
        if chosen.size is None and chosen.where == "sites":
            wanted = smallest
        self._size = tuple(-(-size // step) * step for size, step in zip(wanted or smallest, steps, strict=True))

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """Two numbers of each channel, or the outputs of all stages on noise."""
        stages = stage_names(network)
        if self.settings.where == "server":
            what = "of all training images, channel by channel"
            shape = (network.channels,)
            deviations = Shared("deviation", shape, f"standard deviation {what}", at_least=0)
            return Shared("mean", shape, f"mean {what}"), deviations
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
        similarity = torch.zeros(len(stages), count, count, dtype=torch.float64)
        if self.settings.where == "server":
            self._settle_kept(server, updates[0])
        if count < 2:
            return similarity
        outputs = self._outputs(server, updates, stages)
        if self.settings.compare == "fedsoda":
            for m in range(count):
                outputs_of_m = outputs(m, m, slice(None))
                square = products(outputs_of_m, outputs_of_m)
                for j in (j for j in range(count) if j != m):
                    outputs_of_j = outputs(m, j, slice(None))
                    similarity[:, m, j] = cosine(
                        products(outputs_of_m, outputs_of_j), square, products(outputs_of_j, outputs_of_j), how
                    )
            return similarity
        # One probe after another, so that the outputs of many models fit.
        each = [
            pairwise_products(_on_one(outputs, number), count, _MAX_BYTES_HELD)
            for number in range(self.settings.probes)
        ]
        pairs = {pair: torch.cat([by_pair[pair] for by_pair in each], 1) for pair in each[0]}
        for (m, j), product in pairs.items():
            similarity[:, m, j] = similarity[:, j, m] = cosine(product, pairs[m, m], pairs[j, j], how)
        return similarity

    def _outputs(self, server: ServerRound, updates: list[Update], stages: list[str]) -> Outputs:
        """Outputs of a site's model on some of a site's probes: run here, or what the sites have sent."""
        shared = [update.shared[self.name] for update in updates]
        if self.settings.where == "sites":
            return lambda _, on, some: {name: tensor[some] for name, tensor in shared[on].items()}
        noise = [self._probe(server.round, u.site, own) for u, own in zip(updates, shared, strict=True)]

        def run(model: int, on: int, some: slice) -> Tensors:
            load_weights(server.network, updates[model].weights)
            return stage_outputs(server.network, noise[on][some].to(server.device), stages)

        return run

    def _probe(self, round_number: int, site: str, statistics: Mapping[str, Tensor]) -> Tensor:
        """Noise ``(probes, channel, *size)`` with a site's mean and deviation, the same wherever it is drawn."""
        generator = generator_for(self.context.seed, "ssa", round_number, "" if self.settings.shared_noise else site)
        mean, deviation = (statistics[n].reshape(-1, *[1] * len(self._size)) for n in ("mean", "deviation"))
        return mean + deviation * torch.randn(self.settings.probes, len(mean), *self._size, generator=generator)

    def _settle_kept(self, server: ServerRound, update: Update) -> None:
        """Weights that stay at the sites are unknown here: give them fresh values, not those of the last user.

        A layer starts as a new one would; a weight that belongs to no layer becomes 0.
        """
        network = server.network
        kept = set(network.state_dict()) - update.weights.keys() - network.frozen()
        if kept and "said" not in self.state:
            self.state["said"] = torch.ones(())
            server.warn(
                f"ssa: {len(kept)} weights stay at the sites, '{min(kept)}' first; the server compares models with "
                "fresh values in their place; ssa(where=sites) compares the whole models."
            )
        fresh_values(network, kept, seed_for(self.context.seed, "ssa", "kept"))


def _on_one(outputs: Outputs, number: int) -> Callable[[int], Tensors]:
    """Outputs of a site's model on one of its own probes."""
    return lambda m: outputs(m, m, slice(number, number + 1))


@torch.no_grad()
def _statistics(site: SiteRound) -> Tensors:
    """Mean and deviation ``(channel,)`` of all pixels of the site's training images, with or without labels."""
    total, count = torch.zeros(2, site.network.channels, dtype=torch.float64), 0
    wide = widest_float(site.device)
    for _, images, _ in site.batches():
        values = images.transpose(0, 1).flatten(1)
        total += torch.stack([part.sum(1, dtype=wide) for part in (values, values.square())]).cpu()
        count += values.shape[1]
    mean, square = total / max(1, count)
    return {"mean": mean.float(), "deviation": (square - mean.square()).clamp_min(0).sqrt().float()}
