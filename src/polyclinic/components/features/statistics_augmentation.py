"""The layer of FedFA's feature augmentation; ``feature_augmentation.py`` has the equations and the component."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_EPS = 1e-6


class StatisticsAugmentation(nn.Module):
    """Redraws the statistics of a map ``(batch, channel, *spatial)`` in train mode; shape and type stay.

    All buffers are ``(channel,)``: the site's running ``mean`` and ``deviation``, and how far these differ between
    sites, ``mean_variance`` and ``deviation_variance``, which the server sets. Random numbers come from torch's global
    CPU generator. ``draws`` holds those of the current step by batch size; while it is ``None``, each pass draws anew.
    """

    mean: Tensor
    deviation: Tensor
    mean_variance: Tensor
    deviation_variance: Tensor

    def __init__(self, channels: int, probability: float, momentum: float) -> None:
        super().__init__()
        self.probability, self.momentum = probability, momentum
        self.draws: dict[int, Tensor | None] | None = None
        self._batches: list[tuple[Tensor, Tensor]] = []
        self.cases_at_hand: set[int] = set()
        self.begin(evenly=False)
        self.register_buffer("mean", torch.zeros(channels))
        for name in ("deviation", "mean_variance", "deviation_variance"):
            self.register_buffer(name, torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """The map with new statistics, or as it is. Computed in float32 or better, whatever the type of ``x``."""
        if not self.training:
            return x
        first = not self.draws
        noise = self._noise(x)
        if noise is None:
            return x
        with torch.autocast(x.device.type, enabled=False):
            values = x.to(torch.promote_types(x.dtype, torch.float32)).flatten(2)
            mean = values.mean(2)
            centred = values - mean[..., None]
            deviation = (centred.square().mean(2) + _EPS).sqrt()
            if first:
                self._count(mean.detach(), deviation.detach())
            if len(x) < 2:
                return x
            new_mean = mean + noise[0] * self._width(mean, self.mean_variance)
            new_deviation = (deviation + noise[1] * self._width(deviation, self.deviation_variance)).clamp_min(0)
            result = centred * (new_deviation / deviation)[..., None] + new_mean[..., None]
            return result.view(x.shape).to(x.dtype)

    def _noise(self, x: Tensor) -> Tensor | None:
        """Standard normal numbers ``(2, batch, channel)``, or ``None`` when the draw says to leave the batch alone."""
        if self.draws is not None and len(x) in self.draws:
            return self.draws[len(x)]
        noise = None
        if float(torch.rand(())) < self.probability:
            noise = torch.randn(2, *x.shape[:2]).to(x.device)
        if self.draws is not None:
            self.draws[len(x)] = noise
        return noise

    @torch.no_grad()
    def _count(self, mean: Tensor, deviation: Tensor) -> None:
        """Equation 2 for statistics ``(batch, channel)``; ``evenly`` keeps the batches for ``settle``."""
        if self.evenly:
            self._batches.append((mean.mean(0), deviation.mean(0)))
            self._cases |= self.cases_at_hand
            return
        for running, found in ((self.mean, mean), (self.deviation, deviation)):
            running.lerp_(found.mean(0).to(running.dtype), 1 - self.momentum)

    def begin(self, evenly: bool) -> None:
        """A new round; ``evenly`` gives all its batches one weight, so that none is alone in the running averages."""
        self.evenly, self._batches = evenly, []
        self.cases_at_hand, self._cases = set(), set[int]()

    @torch.no_grad()
    def settle(self, minimum: int) -> None:
        """Equation 2 for all batches of the round at once, with their mean; nothing if they are of too few cases."""
        count = len(self._batches)
        if count and len(self._cases) >= minimum:
            for running, found in zip((self.mean, self.deviation), zip(*self._batches, strict=True), strict=True):
                running.lerp_(torch.stack(found).mean(0).to(running.dtype), 1 - self.momentum**count)
        self._batches = []

    def _width(self, statistic: Tensor, between: Tensor) -> Tensor:
        """Square root of the variance in (5), ``(channel,)``, for a statistic ``(batch, channel)``."""
        inverse = 1 / (1 + 1 / (between + _EPS))
        gamma = len(inverse) * inverse / inverse.sum()
        return ((gamma + 1) * (statistic.var(0) + _EPS)).sqrt()
