"""Networks that are not trained but followed: the received one, and moving averages of the trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from polyclinic.components.rounds import SiteRound, StaticTeacherOutputs
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_MAX_BYTES_HELD = 2**31  # of a static teacher's outputs, at a site in a round


@torch.no_grad()
def follow(teacher: SegmentationNetwork, student: SegmentationNetwork, keep: float) -> None:
    """``theta_t <- keep theta_t + (1 - keep) theta_s`` for trained parameters; buffers are copied."""
    averages = dict(teacher.named_parameters())
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            averages[name].lerp_(parameter, 1 - keep)
    for average, buffer in zip(teacher.buffers(), student.buffers(), strict=True):
        if average is not buffer:  # a frozen encoder is one for both
            average.copy_(buffer)


@torch.no_grad()
def probabilities(network: SegmentationNetwork, images: Tensor) -> Tensor:
    """Softmax ``(batch, class, *spatial)`` in float32 of the network in the mode and precision that it is in."""
    logits: Tensor = network(images)
    return logits.float().softmax(1)


def careful_probabilities(network: SegmentationNetwork, images: Tensor, window: tuple[int, ...] | None) -> Tensor:
    """The same in eval mode and full precision; what exceeds ``window`` goes through in pieces, side by side."""
    with torch.autocast(images.device.type, enabled=False):
        return predict_probabilities(
            network, images, window, overlap=0.0, batch_size=len(images), multiple=network.multiples
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

    ``theta_t <- e theta_t + (1 - e) theta`` with ``e = min(1 - 1 / (t + 1), ema)`` after step t of all rounds. Steps
    count from 0, where the first one makes teacher and student equal, or from 1 (``first_step``), where the received
    model is the first term of the mean.
    """

    def __init__(self, site: SiteRound, state: Mapping[str, Tensor], ema: float, first_step: int = 0) -> None:
        weights = {name.removeprefix("teacher/"): tensor for name, tensor in state.items() if name != "steps"}
        self.network, self.ema, self.first_step = site.frozen(weights or None), ema, first_step
        self.steps = int(state["steps"]) if "steps" in state else 0

    def follow(self, student: SegmentationNetwork) -> None:
        """After a step of the student."""
        follow(self.network, student, min(1 - 1 / (self.steps + self.first_step + 1), self.ema))
        self.steps += 1

    def state(self) -> Tensors:
        """What the site must keep for the next round, where ``__init__`` takes it."""
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

        They live in ``site.static_outputs``, so that the components of a method share them. What would not fit is not
        kept, and nothing that no component has begun to ``keep``.
        """
        if not self._fits(images) or not (keep or self.site.static_outputs is not None):
            return careful_probabilities(self.network, images, self.window)
        outputs = self._outputs(images)
        # An image can be twice in a batch, where one walk over the images ends and the next begins.
        wanted, inverse = torch.unique(outputs.rows[indices], return_inverse=True)
        places = torch.empty_like(wanted).scatter_(0, inverse, torch.arange(len(indices)))
        missing = ~outputs.filled[wanted]
        if missing.any():
            new = images[places[missing].to(images.device)]
            outputs.values[wanted[missing]] = careful_probabilities(self.network, new, self.window).cpu()
            outputs.filled[wanted[missing]] = True
        return outputs.values[outputs.rows[indices]].to(images.device)

    def put(self, indices: Tensor, computed: Tensor) -> None:
        """Keep probabilities of training images as they are that the caller has computed, if they fit."""
        if self._fits(computed):
            outputs = self._outputs(computed)
            outputs.values[outputs.rows[indices]] = computed.cpu()
            outputs.filled[outputs.rows[indices]] = True

    def _fits(self, images: Tensor) -> bool:
        numbers = len(self.site.data.training_indices()) * self.site.network.classes * images.shape[2:].numel()
        return self.site.data.images.uniform and 4 * numbers <= _MAX_BYTES_HELD

    def _outputs(self, like: Tensor) -> StaticTeacherOutputs:
        """The round's outputs, empty at first; ``like`` ``(batch, any, *spatial)`` says their spatial size."""
        if self.site.static_outputs is None:
            images, training = len(self.site.data.images), self.site.data.training_indices()
            rows = torch.full((images,), -1)
            rows[training] = torch.arange(len(training))
            values = torch.empty(len(training), self.site.network.classes, *like.shape[2:])
            filled = torch.zeros(len(training), dtype=torch.bool)
            self.site.static_outputs = StaticTeacherOutputs(rows, filled, values)
        return self.site.static_outputs
