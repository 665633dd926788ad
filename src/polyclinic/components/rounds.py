"""What a component may see of a round, at a site and at the server."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork, load_weights

if TYPE_CHECKING:
    from polyclinic.data.sitedata import SiteData


@dataclass
class StaticTeacherOutputs:
    """Probabilities of the received model for a site's training images as they are, on the CPU.

    ``rows`` ``(image,)`` is the row of each image, -1 for one that is not trained on; ``filled`` ``(training image,)``
    says which rows of ``values`` ``(training image, class, *spatial)`` have been computed.
    """

    rows: Tensor
    filled: Tensor
    values: Tensor


@dataclass
class SiteRound:
    """A site's round: its data, the network being trained, and the weights it started from."""

    site: str
    round: int
    network: SegmentationNetwork
    received: Mapping[str, Tensor]
    data: SiteData
    device: torch.device
    generator: torch.Generator
    batch_size: int
    steps: int = 0
    learning_rates: float = 0.0
    static_outputs: StaticTeacherOutputs | None = None
    """Of the round's static teacher, which several components of a method use; none before one of them keeps any."""
    minimum_images: int = 1
    """Cases that must be behind each row of what a component shares, by the site's policy; 1 where there is none."""
    _case_numbers: dict[tuple[str, str], int] = field(default_factory=dict, init=False, repr=False)

    @property
    def mean_lr(self) -> float:
        """Mean learning rate of the steps so far (SCAFFOLD's option II)."""
        return self.learning_rates / max(1, self.steps)

    def frozen(self, weights: Mapping[str, Tensor] | None = None) -> SegmentationNetwork:
        """A copy of the network in eval mode without gradients; ``weights`` default to the received ones."""
        twin = copy.deepcopy(self.network).eval().requires_grad_(False)
        load_weights(twin, dict(self.received if weights is None else weights))
        return twin

    def case_numbers(self, rows: Tensor) -> Tensor:
        """A number for the case of each image ``(image,)``; slices and images of one case have the same."""
        samples, known = [self.data.images.samples[row] for row in rows.tolist()], self._case_numbers
        keys = [(sample.site, sample.case) for sample in samples]
        return torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.int64)

    def require_cases(self, component: str, cases: Collection[int]) -> None:
        """Raise where what a component is about to share rests on some cases, and fewer than the policy asks for."""
        if 0 < len(cases) < self.minimum_images:
            number = "1 case" if len(cases) == 1 else f"{len(cases)} cases"
            raise PolyclinicError(
                f"refused: what {component} shares would rest on {number}, the site's policy asks for "
                f"{self.minimum_images}"
            )

    def batches(self, labelled: bool | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Walk over the training images as they are: indices, images and labels of each batch, on the device.

        ``labelled`` restricts to images with (``True``) or without labels; labels of unlabelled images are zeros.
        """
        indices = self.data.training_indices(labelled)
        size = self.batch_size if self.data.images.uniform else 1
        parts = torch.split(indices, size) if len(indices) else ()
        for part, following in zip(parts, (*parts[1:], indices[:0]), strict=False):
            images, labels = self.data.images.batch(part)
            self.data.images.will_need(following)
            yield part, images.to(self.device), labels.to(self.device)


@dataclass
class ServerRound:
    """The server's round: a network to run probes through, the weights before, and the new ones once they exist."""

    round: int
    rounds: int
    network: SegmentationNetwork
    previous: Tensors
    sites: tuple[str, ...]
    buffers: frozenset[str]
    buffer_policy: str
    generator: torch.Generator
    device: torch.device
    weights: Tensors = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    warn: Callable[[str], None] = lambda _: None
    notes: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Numbers for the record, by component, name and site: they go into ``events.jsonl``."""

    @property
    def parameters(self) -> list[str]:
        """Names of the weights that are trained and travel: floating point and no buffers.

        Sorted, because a checkpoint that was read again has its names in another order, and sums depend on it.
        """
        return sorted(n for n, t in self.previous.items() if t.is_floating_point() and n not in self.buffers)
