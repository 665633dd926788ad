"""What the components with class prototypes share: class means of the last local epoch leave, global prototypes return.

A subclass says which pixels it looks at (``views``), how the server turns the sites' means into global prototypes
(``globalise``, FINCH by default) and what loss they give (``align``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import Prototypes
from polyclinic.components.toolbox.prototypes.finch import cluster_by_class
from polyclinic.components.toolbox.prototypes.views import View
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork


class ClassMeans:
    """Running class means: over all pixels, or unweighted over the means of the batches (``by_batch``)."""

    def __init__(self, classes: int, channels: int, device: torch.device, by_batch: bool = False) -> None:
        self.sums = torch.zeros(classes, channels, device=device)
        self.weights = torch.zeros(classes, device=device)
        self.pixels = torch.zeros(classes, dtype=torch.long, device=device)
        self.by_batch = by_batch
        self.cases: list[set[int]] = [set() for _ in range(classes)]

    def add(self, sums: Tensor, counts: Tensor) -> None:
        """One batch: ``sums`` ``(class, channels)`` and ``counts`` ``(class,)``."""
        self.pixels += counts
        present = (counts > 0).to(sums.dtype)
        self.sums += sums / counts.clamp_min(1)[:, None] if self.by_batch else sums
        self.weights += present if self.by_batch else counts

    def note_cases(self, cases: Tensor, counts: Tensor) -> None:
        """One batch: the numbers of the images' cases ``(batch,)`` and the pixels of each class in them."""
        for row, number in counts.cpu().nonzero().tolist():
            self.cases[number].add(int(cases[row]))

    def forget_few(self, minimum: int) -> None:
        """Make a class of fewer than ``minimum`` cases one that was never seen."""
        few = torch.tensor([len(cases) < minimum for cases in self.cases], device=self.sums.device)
        self.sums[few], self.weights[few], self.pixels[few] = 0.0, 0.0, 0

    def result(self) -> Tensor:
        """``(class, channels)``; zeros for a class that was never seen."""
        return self.sums / self.weights.clamp_min(1)[:, None]


class PrototypeComponent(Component, ABC):
    """Collects class means, shares them, and aligns pixels with the global prototypes that come back."""

    level = "objective"
    comes_back = "prototypes made of those of all sites, without their names"

    # ---- what a subclass says ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def weight(self) -> float:
        """Of all loss terms; 0 switches the component off."""

    @property
    def averages_batch_means(self) -> bool:
        """Whether a prototype is the unweighted mean of the batches' means, and not the mean over all pixels."""
        return False

    @abstractmethod
    def channels(self, network: SegmentationNetwork) -> dict[str, int]:
        """The streams by name, with the length of a prototype."""

    @abstractmethod
    def views(self, step: Step) -> dict[str, View]:
        """The pixels of each stream."""

    @abstractmethod
    def align(self, view: View, prototypes: Prototypes) -> dict[str, Tensor]:
        """Unweighted loss terms of one stream by name."""

    def globalise(self, means: Tensor, counts: Tensor) -> Prototypes:
        """Global prototypes from the sites' means ``(site, class, channels)`` and pixel counts ``(site, class)``."""
        present = counts > 0
        classes = torch.arange(means.shape[1]).expand(len(means), -1)[present]
        vectors, classes = cluster_by_class(means[present], classes)
        return Prototypes(vectors, classes, means.shape[1])

    # ---- site half -----------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether the weight is above zero; otherwise nothing happens and nothing leaves."""
        return bool(self.weight)

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """A prototype a class and stream, and the pixels it is the mean of."""
        classes = len(self.context.task.classes)
        streams = self.channels(network) if self.on else {}
        vectors = (
            Shared(name, (classes, channels), "mean embedding of each class, zeros if absent", prototypes=True)
            for name, channels in streams.items()
        )
        what = "pixels of each class"
        counts = (Shared(f"{name}_pixels", (classes,), what, torch.int64, at_least=0) for name in streams)
        return (*vectors, *counts)

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The global prototypes of each stream, and their classes."""
        classes = len(self.context.task.classes)
        streams = self.channels(network) if self.on else {}
        return tuple(
            one
            for name, channels in streams.items()
            for one in (
                Shared(name, (f"prototypes of {name}", channels), "global prototypes"),
                Shared(f"{name}_classes", (f"prototypes of {name}",), "class of each", torch.int64, below=classes),
            )
        )

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Take the global prototypes and start empty means."""
        classes = len(self.context.task.classes)
        streams = self.channels(site.network) if self.on else {}
        self._global = {name: Prototypes.received(shared, name, classes, site.device) for name in streams}
        by_batch = self.averages_batch_means
        self._means = {name: ClassMeans(classes, c, site.device, by_batch) for name, c in streams.items()}

    def loss(self, step: Step) -> dict[str, Tensor]:
        """The aligned streams' mean, weighted; before there are prototypes only the class means are collected."""
        aligned = any(prototypes is not None for prototypes in self._global.values())
        if not self.on or not len(step.images) or not (step.last_epoch or aligned):
            return {}
        with torch.autocast(step.images.device.type, enabled=False):
            views = self.views(step)
            if step.last_epoch:
                step.once(f"{self.name}/collected", lambda: self._collect(step, views))
            return self._terms(views) if aligned else {}

    @torch.no_grad()
    def _collect(self, step: Step, views: dict[str, View]) -> None:
        classes = len(self.context.task.classes)
        for name, view in views.items():
            self._means[name].add(*view.class_sums(classes))
            if step.site.minimum_images > 1 and step.indices is not None:
                self._means[name].note_cases(step.site.case_numbers(step.indices), view.image_counts(classes))

    def _terms(self, views: dict[str, View]) -> dict[str, Tensor]:
        scale = self.weight / len(views)
        terms: dict[str, Tensor] = {}
        for name, view in views.items():
            prototypes = self._global[name]
            for term, value in self.align(view, prototypes).items() if prototypes is not None else ():
                key = f"{self.name}_{term}"
                terms[key] = terms[key] + scale * value if key in terms else scale * value
        return terms

    def share(self, site: SiteRound) -> Tensors:
        """The class means and their counts; none of a class of too few cases for the site's policy."""
        for means in self._means.values() if site.minimum_images > 1 else ():
            means.forget_few(site.minimum_images)
        vectors = {name: means.result() for name, means in self._means.items()}
        return vectors | {f"{name}_pixels": means.pixels for name, means in self._means.items()}

    # ---- server half ---------------------------------------------------------------------------------------------

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Global prototypes of every stream, for the next round."""
        if not self.on or not shared:
            return {}
        result: Tensors = {}
        for name in self.channels(server.network):
            means = torch.stack([tensors[name] for tensors in shared.values()])
            counts = torch.stack([tensors[f"{name}_pixels"] for tensors in shared.values()])
            result |= self.globalise(means, counts).tensors(name)
        return result
