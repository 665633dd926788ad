"""Networks that are not trained but followed: the received one, and moving averages of the trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from polyclinic.components.rounds import SiteRound
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_ROOM = 2**31  # bytes of a static teacher's outputs that a site may hold for a round


@torch.no_grad()
def follow(teacher: SegmentationNetwork, student: SegmentationNetwork, keep: float) -> None:
    """``theta_t <- keep theta_t + (1 - keep) theta_s`` for trained parameters; buffers are copied."""
    own = dict(teacher.named_parameters())
    pairs = [(own[name], parameter) for name, parameter in student.named_parameters() if parameter.requires_grad]
    torch._foreach_lerp_([a for a, _ in pairs], [b.detach() for _, b in pairs], 1 - keep)
    for mine, other in zip(teacher.buffers(), student.buffers(), strict=True):
        if mine is not other:  # a frozen encoder is one for both
            mine.copy_(other)


@torch.no_grad()
def probabilities(network: SegmentationNetwork, images: Tensor) -> Tensor:
    """Softmax ``(batch, class, *spatial)`` in float32 of the network in the mode and precision that it is in."""
    found: Tensor = network(images).float().softmax(1)
    return found


def careful_probabilities(network: SegmentationNetwork, images: Tensor, window: tuple[int, ...] | None) -> Tensor:
    """The same in eval mode and full precision; what exceeds ``window`` goes through in pieces, side by side."""
    with torch.autocast(images.device.type, enabled=False):
        return predict_probabilities(
            network, images, window, overlap=0.0, batch_size=len(images), multiple=network.multiple
        )


def sees_whole_images(site: SiteRound, size: tuple[int, ...] | None) -> bool:
    """Whether the steps of a site see its images from edge to edge and not patches of ``size`` (the context's)."""
    images = site.data.images
    return size is None or (images.uniform and images.batch(site.data.training_indices()[:1])[0].shape[2:] == size)


def drop_channels(pyramid: Sequence[Tensor], probability: float, generator: torch.Generator) -> list[Tensor]:
    """Every level with channels left out at random and the others scaled up (Dropout2d), from a CPU generator."""
    keep = 1 - probability
    masks = [torch.rand(f.shape[:2], generator=generator) < keep for f in pyramid]
    return [
        f * (m / keep).reshape(*m.shape, *[1] * (f.dim() - 2)).to(f.device, f.dtype)
        for f, m in zip(pyramid, masks, strict=True)
    ]


class SlowTeacher:
    """A moving average of the trained network that stays at the site over rounds; the received model in the first.

    ``theta_t <- e theta_t + (1 - e) theta`` with ``e = min(1 - 1 / (t + 1), ema)`` after step t of all rounds, from 0.
    """

    def __init__(self, site: SiteRound, state: Mapping[str, Tensor], ema: float) -> None:
        kept = {name.removeprefix("teacher/"): tensor for name, tensor in state.items() if name != "steps"}
        self.network, self.ema = site.frozen(kept or None), ema
        self.steps = int(state["steps"]) if "steps" in state else 0

    def follow(self, student: SegmentationNetwork) -> None:
        """After a step of the student; the first one, t = 0, makes them equal."""
        follow(self.network, student, min(1 - 1 / (self.steps + 1), self.ema))
        self.steps += 1

    def state(self) -> Tensors:
        """What the site must keep for the next round."""
        frozen = self.network.frozen()
        kept = {f"teacher/{n}": t.clone() for n, t in self.network.state_dict().items() if n not in frozen}
        return {**kept, "steps": torch.tensor(self.steps)}


class StaticTeacher:
    """The received model of a round, in eval mode; a copy of the network is made when it is first needed."""

    def __init__(self, site: SiteRound, window: tuple[int, ...] | None = None) -> None:
        self.site, self.window = site, window

    @cached_property
    def network(self) -> SegmentationNetwork:
        """The received weights in a network of their own."""
        return self.site.frozen()

    def __call__(self, views: Tensor) -> Tensor:
        """Probabilities of any images."""
        return probabilities(self.network, views)

    def known(self, indices: Tensor, images: Tensor, keep: bool = True) -> Tensor:
        """Probabilities of training images as they are, each computed once in a round.

        They live in ``site.scratch``, so that the components of a method share them. What would not fit is not kept,
        and nothing that nobody has begun to ``keep``.
        """
        if not self._fits(images) or not (keep or "static/known" in self.site.scratch):
            return careful_probabilities(self.network, images, self.window)
        places, known, values = self._memory(images)
        # An image can be twice in a batch, where one walk over the images ends and the next begins.
        wanted, inverse = torch.unique(places[indices], return_inverse=True)
        rows = torch.empty_like(wanted).scatter_(0, inverse, torch.arange(len(indices)))
        missing = ~known[wanted]
        if missing.any():
            new = images[rows[missing].to(images.device)]
            values[wanted[missing]] = careful_probabilities(self.network, new, self.window).cpu()
            known[wanted[missing]] = True
        return values[places[indices]].to(images.device)

    def put(self, indices: Tensor, found: Tensor) -> None:
        """Keep probabilities of training images as they are that the caller has computed, if they fit."""
        if self._fits(found):
            places, known, values = self._memory(found)
            values[places[indices]] = found.cpu()
            known[places[indices]] = True

    def _fits(self, images: Tensor) -> bool:
        numbers = len(self.site.data.training_indices()) * self.site.network.classes * images.shape[2:].numel()
        return self.site.data.images.uniform and 4 * numbers <= _ROOM

    def _memory(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row of each image, whether it is filled, and the rows ``(training image, class, *spatial)``; on the CPU."""
        scratch, rows = self.site.scratch, self.site.data.training_indices()
        if "static/places" not in scratch:
            places = torch.full((len(self.site.data.images),), -1)
            places[rows] = torch.arange(len(rows))
            scratch["static/places"] = places
            scratch["static/known"] = torch.zeros(len(rows), dtype=torch.bool)
            scratch["static/values"] = torch.empty(len(rows), self.site.network.classes, *images.shape[2:])
        return scratch["static/places"], scratch["static/known"], scratch["static/values"]
