"""One optimiser step at a site, as components see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from polyclinic.components.rounds import SiteRound
from polyclinic.data.deformation import Deformation
from polyclinic.networks.base import Features, SegmentationNetwork

_Value = TypeVar("_Value")


@dataclass
class Step:
    """The batch, the network's single forward pass over it, and where in the training it happens.

    ``images`` is ``(labelled, channel, *spatial)`` with ``labels`` ``(labelled, *spatial)``; both have no rows at a
    site that only has unlabelled images. ``weak`` and ``strong`` are two views with one geometry of the unlabelled
    batch, ``(unlabelled, channel, *spatial)``, or ``None`` when no component of the method wants them.
    """

    site: SiteRound
    network: SegmentationNetwork
    images: Tensor
    labels: Tensor
    generator: torch.Generator
    round: int
    epoch: int
    index: int
    last_epoch: bool
    progress: float
    lr: float
    weak: Tensor | None = None
    strong: Tensor | None = None
    indices: Tensor | None = None
    unlabelled_indices: Tensor | None = None
    deformation: Deformation | None = None
    """The geometry of ``weak`` and ``strong``, to move what was computed on the images as they are."""
    output: Features = field(init=False)
    losses: dict[str, Tensor] = field(default_factory=dict)
    recompute: Callable[[], Tensor] = field(init=False)
    """Run forward and backward again on the same batch, into cleared gradients; the base of weight perturbation."""
    _made: dict[str, object] = field(default_factory=dict, init=False, repr=False)

    def once(self, key: str, make: Callable[[], _Value]) -> _Value:
        """What ``make`` returned at the first call with this key in this step; later calls do not run it again.

        ``loss`` runs a second time in a step where weights are perturbed. Random draws, teachers' predictions and
        collected statistics go through here, so that they are the same in both passes and counted once. A key begins
        with the component's name.
        """
        if key not in self._made:
            self._made[key] = make()
        return cast(_Value, self._made[key])

    @property
    def inputs(self) -> Tensor:
        """What goes through the network: labelled images, then the strong view of the unlabelled ones."""
        return self.images if self.strong is None else torch.cat([self.images, self.strong])

    @property
    def cases(self) -> set[int]:
        """Numbers of the cases (``SiteRound.case_numbers``) of all images of the step."""
        drawn = [rows for rows in (self.indices, self.unlabelled_indices) if rows is not None]
        return {number for rows in drawn for number in self.site.case_numbers(rows).tolist()}

    @property
    def labelled(self) -> Features:
        """The part of the output that belongs to ``images``."""
        return self.output.rows(slice(0, len(self.images)))

    @property
    def unlabelled(self) -> Features:
        """The part of the output that belongs to ``strong``."""
        return self.output.rows(slice(len(self.images), None))
