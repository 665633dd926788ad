"""Networks that are not trained but followed: frozen ones, and moving averages of the trained one."""

from __future__ import annotations

import torch
from torch import Tensor

from polyclinic.components.rounds import SiteRound
from polyclinic.federation.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_ROOM = 2**31  # bytes of a static teacher's outputs that a site may hold for a round


@torch.no_grad()
def follow(teacher: SegmentationNetwork, student: SegmentationNetwork, keep: float) -> None:
    """``theta_t <- keep theta_t + (1 - keep) theta_s`` for parameters; buffers are copied."""
    own = dict(teacher.named_parameters())
    pairs = [(own[name], parameter) for name, parameter in student.named_parameters() if parameter.requires_grad]
    torch._foreach_lerp_([a for a, _ in pairs], [b.detach() for _, b in pairs], 1 - keep)
    for mine, other in zip(teacher.buffers(), student.buffers(), strict=True):
        mine.copy_(other)


@torch.no_grad()
def probabilities(network: SegmentationNetwork, images: Tensor) -> Tensor:
    """Softmax ``(batch, class, *spatial)`` in float32 of a network that is in eval mode."""
    found: Tensor = network(images).float().softmax(1)
    return found


class Remembered:
    """Probabilities of the received model on the site's training images as they are, each computed once in a round.

    They live in ``site.scratch``, so that the components of a method share them. What would not fit is not kept.
    """

    def __init__(self, site: SiteRound, network: SegmentationNetwork, classes: int) -> None:
        self.network, self.scratch = network, site.scratch
        rows = site.data.training_indices()
        if "static/places" not in self.scratch and len(rows):
            places = torch.full((len(site.data.images.samples),), -1)
            places[rows] = torch.arange(len(rows))
            image = site.data.images.batch(rows[:1])[0]
            size = len(rows) * classes * image.shape[2:].numel() * 4
            if site.data.images.uniform and size <= _ROOM:
                self.scratch["static/places"] = places
                self.scratch["static/known"] = torch.zeros(len(rows), dtype=torch.bool)
                self.scratch["static/values"] = torch.empty(len(rows), classes, *image.shape[2:])

    def __call__(self, indices: Tensor, images: Tensor) -> Tensor:
        """Probabilities of the images of these indices."""
        kept: Tensors = self.scratch
        if "static/places" not in kept:
            return probabilities(self.network, images)
        places = kept["static/places"][indices]
        missing = ~kept["static/known"][places]
        if missing.any():
            found = probabilities(self.network, images[missing.to(images.device)])
            kept["static/values"][places[missing]] = found.cpu()
            kept["static/known"][places[missing]] = True
        return kept["static/values"][places].to(images.device)
