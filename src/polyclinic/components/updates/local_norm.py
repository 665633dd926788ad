"""FedBN's local normalisation.

Paper: Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021, algorithm 1.
Normalisation layers (weights, biases, running statistics) stay at the site, everything else is averaged.

Departures: layers are found by type (batch, instance, group, layer norm), not by the letters ``bn`` in a name. For a
site that never took part (leave one site out) the paper's authors advise to average the sites' normalisation layers
(med-air/FedBN issue 9); only then do these tensors leave a site, and they are declared.
"""

from __future__ import annotations

from typing import Literal

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_NEVER_NEGATIVE = (".running_var", ".num_batches_tracked")


@component
class LocalNorm(Component):
    """Keeps normalisation layers at the site."""

    name = "local_norm"
    level = "update"
    paper = "Li et al., ICLR 2021"
    equations = ("FedBN algorithm 1: w_m^norm stays at site m",)

    class Settings(ComponentSettings):
        """``unseen``: the norm layers of a site that never took part.

        ``average`` shares and averages those of the training sites, ``initial`` shares nothing, and ``auto`` is
        ``average`` when the protocol has an unseen site and ``initial`` otherwise.
        """

        unseen: Literal["auto", "average", "initial"] = "auto"

    def install(self, network: SegmentationNetwork) -> None:
        """Find the normalisation layers."""
        self._names = network.norm_names()

    def warnings(self) -> list[str]:
        """Norms without weights make FedBN equal to FedAvg."""
        if hasattr(self, "_names") and not self._names:
            return ["local_norm keeps nothing: this network's norm layers hold no weights, so fedbn equals fedavg."]
        return []

    def keeps(self, name: str) -> bool:
        """Whether the weight belongs to a normalisation layer."""
        return name in self._names

    @property
    def _shares(self) -> bool:
        wanted = self.settings.unseen
        return wanted == "average" or (wanted == "auto" and self.context.unseen_sites)

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """Nothing, or the norm layers when unseen sites need their average."""
        if not self._shares:
            return ()
        return tuple(
            Shared(
                name, tuple(tensor.shape), "norm layer, averaged for unseen sites only", tensor.dtype,
                at_least=0 if name.endswith(_NEVER_NEGATIVE) else None, squared=name.endswith(_NEVER_NEGATIVE[0]),
            )
            for name, tensor in network.state_dict().items()
            if name in self._names
        )  # fmt: skip

    def share(self, site: SiteRound) -> Tensors:
        """The trained norm layers, if unseen sites need their average."""
        if not self._shares:
            return {}
        return {name: tensor.clone() for name, tensor in site.network.state_dict().items() if name in self._names}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Average them into the server's state; nothing goes back to the sites."""
        if self._shares and shared:
            mean = StreamingMean(server.buffers, server.buffer_policy)
            for site, tensors in shared.items():
                mean.add(tensors, 1.0, server.samples[site])
            self.state = mean.result({})
        return {}

    def unseen_weights(self, server: ServerRound) -> Tensors:  # noqa: ARG002
        """The average, for a site that never took part."""
        return dict(self.state)
