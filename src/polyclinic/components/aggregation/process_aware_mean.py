"""FedContrast-GPA's process-aware aggregation.

Paper: Zhou, Zheng, *FedContrast-GPA: Heterogeneous Federated Optimization via Local Contrastive Learning and Global
Process-Aware Aggregation*, MICCAI 2023. No code was released. **This is a re-implementation from the abstract**, which
says that aggregation is aware of the process of local training, to mitigate stragglers. Our form of it:

``w = sum_m a_m w_m / sum_m a_m`` with ``a_m = n_m q_m`` and ``q_m = min(1, completed steps / planned steps)``.

Departures: whatever the chapter behind the abstract does differently. Where every site completes its steps this is
FedAvg, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.data.batches import steps_per_epoch
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork


@component
class ProcessAwareMean(Component):
    """The mean of the sites' weights, by training samples and by the part of the planned steps that was completed."""

    name = "process_aware_mean"
    level = "aggregation"
    paper = "Zhou, Zheng, MICCAI 2023 (re-implementation from the abstract)"
    equations = ("our form: a_m ~ n_m min(1, completed steps / planned steps)",)
    aggregates = True
    streams = True

    class Settings(ComponentSettings):
        """``weighting``: ``samples`` (n_m) or ``uniform`` (1) times the completed part."""

        weighting: Literal["samples", "uniform"] = "samples"

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """How many steps the round should have had: the server does not know a site's unlabelled images."""
        return (Shared("planned", (), "planned local steps", torch.int64, at_least=0),)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """No step has been seen."""
        self._mixed = False

    def after_step(self, step: Step) -> None:
        """Notice whether unlabelled images are trained on, which changes the length of an epoch."""
        self._mixed = self._mixed or step.unlabelled_indices is not None

    def share(self, site: SiteRound) -> Tensors:
        """The planned steps of the round."""
        training = self.context.training
        labelled = len(site.data.training_indices(True))
        unlabelled = len(site.data.training_indices(False)) if self._mixed else 0
        steps = steps_per_epoch(labelled, unlabelled, training.batch_size, training.steps_per_epoch)
        return {"planned": torch.tensor(steps * training.local_epochs)}

    def aggregate(self, server: ServerRound, updates: Iterable[Update]) -> Tensors:
        """One pass over the updates; a site without a step counts for nothing, and if all are, nothing changes."""
        mean = StreamingMean(server.buffers, server.buffer_policy)
        for update in updates:
            planned = int(update.shared[self.name]["planned"])
            done = min(1.0, update.steps / planned) if planned > 0 else 0.0
            if weight := (update.samples if self.settings.weighting == "samples" else 1) * done:
                mean.add(update.weights, weight, update.samples)
        return mean.result(server.previous)
