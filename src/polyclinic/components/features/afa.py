"""PathFL's adaptive feature alignment (AFA).

Paper: Zhang et al., *PathFL: Multi-alignment Federated Learning for pathology image segmentation*, Medical Image
Analysis 2025. No code was released. ``Z_m`` are the deepest features of site ``m``, with ``N`` values:

(10) ``mu = (1 / (M N)) sum_m sum_i Z_m(i)``
(11) ``sigma = (1 / M) sum_m sqrt((1 / N) sum_i (Z_m(i) - mu)^2)``
(12) ``Z' = sigma (Z - mu_Z) / sigma_Z + mu``    ``mu_Z``, ``sigma_Z``: of one image's features

Equation 11 measures deviations about the common mean, which a site does not know yet. Two moments settle it in one
exchange: with ``m_m = E[Z_m]`` and ``v_m = E[Z_m^2] - m_m^2`` the root is ``sqrt(v_m + (m_m - mu)^2)``, exactly.

Departures. The equations are printed for scalars (``statistics = "scalar"``); the default takes each channel for
itself, because one mean and deviation for all channels would wipe out what tells them apart. The moments are those of
``Z`` before (12), over the last local epoch. ``N`` differs between sites; every site counts the same. The paper does
not say what happens at test time: (12) is part of the network, whose buffers hold ``mu`` and ``sigma``, and acts there
too, so that the decoder sees the features it was trained on (``when = "train"`` for training alone, in a random share
of the steps). Without statistics, in the first round, features pass unchanged. ``sigma_Z`` is ``sqrt(var + 1e-5)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.machine import widest_float
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

When = Literal["always", "train"]
_EPS = 1e-5


class FeatureAlignment(nn.Module):
    """Gives every image's features ``(batch, channel, *spatial)`` the mean and deviation that the buffers hold.

    ``mean`` and ``deviation`` are ``(groups,)``: as many groups as channels, or one for all of them. ``count`` is the
    number of sites behind them. While ``collecting`` is set, the next batch in train mode is added to the moments.
    """

    aligns_sites = True  # SSA compares what comes before: afterwards all sites have one mean and deviation
    mean: Tensor
    deviation: Tensor
    count: Tensor

    def __init__(self, groups: int, when: When = "always") -> None:
        super().__init__()
        self.when, self.groups = when, groups
        self.register_buffer("mean", torch.zeros(groups))
        self.register_buffer("deviation", torch.zeros(groups))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.active = True
        self.forget()

    def forget(self) -> None:
        """Begin to collect anew."""
        self.collecting, self._pixels = False, 0
        self._sums: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        """Equation 12, in float32 or better; no change as long as nothing is known."""
        if self.training and self.collecting:
            self._collect(features.detach())
        if self.when == "train" and not (self.training and self.active):
            return features
        # On a CPU the count is free to read; on a GPU that would stall every step, and an exported graph cannot branch.
        readable = features.device.type == "cpu" and not torch.compiler.is_compiling()
        if readable and not self.count:
            return features
        with torch.autocast(features.device.type, enabled=False):
            wide = features.to(torch.promote_types(features.dtype, torch.float32))
            scale, shift = (b.to(wide.dtype).expand(features.shape[1]) for b in (self.deviation, self.mean))
            aligned = torch.group_norm(wide, self.groups, scale, shift, _EPS).to(features.dtype)
        return aligned if readable else torch.where(self.count > 0, aligned, features)

    @torch.no_grad()
    def _collect(self, features: Tensor) -> None:
        """Add a batch's values and squares."""
        wide = widest_float(features.device)
        rows = features.reshape(len(features), self.groups, -1).to(torch.promote_types(features.dtype, torch.float32))
        variance, mean = (part.to(wide) for part in torch.var_mean(rows, 2, correction=0))
        sums = torch.stack([mean.sum(0), (variance + mean.square()).sum(0)]) * rows.shape[2]
        self._sums = sums if self._sums is None else self._sums + sums
        self._pixels += len(rows) * rows.shape[2]
        self.collecting = False

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance ``(groups,)`` of all values that were collected, each pixel counted once."""
        if self._sums is None:
            return torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        first, second = self._sums / self._pixels
        return first.float(), (second - first.square()).clamp_min(0).float()


@component
class Afa(Component):
    """Gives the deepest features of all images the mean and deviation that they have over all sites."""

    name = "afa"
    level = "feature"
    rests_on_last_epoch = True
    paper = "Zhang et al., Medical Image Analysis 2025"
    equations = (
        "PathFL eq. 10: mu = mean over sites of E[Z_m]",
        "PathFL eq. 11: sigma = mean over sites of sqrt(E[(Z_m - mu)^2])",
        "PathFL eq. 12: Z' = sigma (Z - mu_Z) / sigma_Z + mu",
    )

    class Settings(ComponentSettings):
        """The deepest map, channel by channel, in training and inference."""

        tap: str = Field("bottleneck", description="where in the network")
        statistics: Literal["channel", "scalar"] = Field("channel", description="of each channel, or of the whole map")
        when: When = Field("always", description="always: in training and inference; train: in training alone")
        probability: float = Field(0.5, ge=0, le=1, description="share of the steps that are aligned if when = train")

    def install(self, network: SegmentationNetwork) -> None:
        """Put the module at the tap, so that training, evaluation and prediction all use it."""
        tap, widths = self.settings.tap, network.widths
        if tap not in widths:
            hint = suggestion(tap, widths) or "."
            raise PolyclinicError(f"afa(tap={tap}): no such tap in this network{hint} Taps: {', '.join(widths)}.")
        groups = widths[tap] if self.settings.statistics == "channel" else 1
        self._module = FeatureAlignment(groups, self.settings.when)
        network.insert(tap, self.name, self._module)
        self._names = {key: f"taps.{tap}.{self.name}.{key}" for key in ("mean", "deviation", "count")}

    def warnings(self) -> list[str]:
        """Say when the network has aligned the features already, and of a probability that is never asked for."""
        sentences = []
        if self.context.norm_takes_style and self.settings.tap != "input":
            sentences.append(
                "afa: expect no gain, the network's norm evens out every image's features (benchmarks/real/pathfl.md); "
                "leave afa out, or set network.norm = group, as the pathfl recipes do."
            )
        if "probability" in self.settings.model_fields_set and self.settings.when != "train":
            sentences.append("afa: probability has no effect unless when=train.")
        return sentences

    def sets(self, name: str) -> bool:
        """All three buffers."""
        return name in self._names.values()

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """Two moments of the features."""
        shape = tuple(self._module.mean.shape)
        where = f"of the features at {self.settings.tap} over the training images"
        variance = Shared("variance", shape, f"variance {where}", at_least=0, squared=True)
        return Shared("mean", shape, f"mean {where}"), variance

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The tap; a module that acts in training alone leaves its mark in the weights."""
        return (Aligned(self.settings.tap, self._module if self.settings.when == "always" else None),)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Nothing of another site is left in the module."""
        self._module.forget()
        self._cases: set[int] = set()

    def on_images(self, step: Step) -> None:
        """Let the first pass of the last epoch's steps be collected; a second pass (perturbation) must not."""
        self._module.collecting = step.last_epoch
        if step.last_epoch and step.site.minimum_images > 1:
            self._cases |= step.cases
        if self.settings.when == "train":
            drawn = float(torch.rand((), generator=step.generator))
            self._module.active = drawn < self.settings.probability

    def share(self, site: SiteRound) -> Tensors:
        """The moments of the last epoch."""
        site.require_cases(self.name, self._cases)
        mean, variance = self._module.moments()
        return {"mean": mean, "variance": variance}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equations 10 and 11 into the network's buffers; nothing else is broadcast."""
        if not server.weights.keys() >= set(self._names.values()):
            return {}  # a method without exchange: features stay as they are
        known = {key: server.previous[name] for key, name in self._names.items()}
        if shared:
            means, variances = (torch.stack([one[n] for one in shared.values()]).double() for n in ("mean", "variance"))
            mean = means.mean(0)
            deviation = (variances + (means - mean).square()).sqrt().mean(0)
            known = {"mean": mean.float(), "deviation": deviation.float(), "count": torch.tensor(len(shared))}
        server.weights.update({self._names[key]: tensor for key, tensor in known.items()})
        return {}
