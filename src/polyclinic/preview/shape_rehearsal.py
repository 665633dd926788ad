"""The FLOPs of images of any size, by shape alone: small images with numbers first, then large ones without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import inf, prod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException

from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Tensors
from polyclinic.federation.site_store import SiteState
from polyclinic.networks import SegmentationNetwork
from polyclinic.preview.rehearsal import Counted, Rehearsal, forward_flops
from polyclinic.preview.value_log import ValueLog, without_numbers
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes

DIRECT = 20e9
"""FLOPs of a step of the bare network up to which a method is rehearsed at its own size: a second or so of one core."""
SMALL_BATCH = 2
"""Images of a step that lends its numbers; components that mix images, and batch norms, want more than one."""
MOST_SITES = 8
"""A rehearsal by shape takes about a second a site, so it has no more of them."""


@dataclass(frozen=True)
class Count:
    """FLOPs of a method, and how they were found."""

    flops: Counted
    rehearsal: Rehearsal
    pace: float
    """FLOPs that a step got done in a second on this machine; 0 if it has none."""
    lender: Rehearsal | None = None
    """The rehearsal on small images that lent its numbers; ``None`` where the large ones had their own."""
    by_value: bool = False
    """Whether sizes depend on values, which are then those of noise in small images."""
    scaled: str | None = None
    """Why the FLOPs are those of small images, times how many of them make a large one; ``None`` if they are not."""

    @property
    def pacer(self) -> Rehearsal:
        """The one that had numbers."""
        return self.lender or self.rehearsal

    @property
    def step_flops(self) -> float:
        """Of a whole step."""
        return self.flops.training * self.rehearsal.sites[0].seen

    def open_step(self, recipe: Recipe, task: Task) -> TimedStep:
        """What the first site would start its third round with, with numbers."""
        state, shared = self.rehearsal.sites[0].store.load(0), self.rehearsal.server.state.shared
        if self.lender is None:
            return TimedStep(self.rehearsal, state, shared)
        filled = Rehearsal(recipe, task, self.rehearsal.names, self.rehearsal.size)
        lent, lent_shared = self.lender.sites[0].store.load(0), self.lender.server.state.shared
        state.personal = filled.workspace.initial_kept
        state.best, state.optimizer = {}, {}
        state.components = {n: _fill(own, lent.components.get(n, {})) for n, own in state.components.items()}
        return TimedStep(filled, state, {n: _fill(own, lent_shared.get(n, {})) for n, own in shared.items()})


@dataclass(frozen=True)
class TimedStep:
    """A rehearsal with numbers, and the memory and message with which its first site takes one more step."""

    rehearsal: Rehearsal
    state: SiteState
    shared: dict[str, Tensors]

    def seconds(self) -> float:
        """Of the step, for one image."""
        site = self.rehearsal.train_once_more(self.state, self.shared)
        return site.seconds / site.seen


def _fill(shapes: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Tensors:
    """Tensors of these shapes: the numbers of the same name where they fit, else zeros."""
    return {
        name: numbers[name]
        if name in numbers and numbers[name].shape == shape.shape
        else torch.zeros(tuple(shape.shape), dtype=shape.dtype)
        for name, shape in shapes.items()
    }


def count_flops(recipe: Recipe, task: Task, sites: list[str], size: tuple[int, ...], step: float) -> Count:
    """The FLOPs of a method; ``step`` are those of the bare network's step with images of this ``size``."""
    if step > DIRECT:
        return count_by_shape(recipe, task, sorted(sites)[:MOST_SITES], size)
    rehearsal = Rehearsal(recipe, task, sites, size)
    return Count(rehearsal.count(), rehearsal, _pace(rehearsal.sites[0].in_steps, rehearsal.sites[0].seconds))


def count_by_shape(recipe: Recipe, task: Task, sites: list[str], size: tuple[int, ...]) -> Count:
    """Rehearse small images with numbers, then large ones without."""
    batch_size = recipe.training.batch_size
    for small_batch in sorted({min(SMALL_BATCH, batch_size), batch_size}):
        # A method that does something else with more images, such as clustering them, needs all of them.
        smaller = with_changes(recipe, {"training.batch_size": small_batch})
        count = _count_from(smaller, recipe, task, sites, size)
        if not count.scaled:
            break
    return count


def _count_from(smaller: Recipe, recipe: Recipe, task: Task, sites: list[str], size: tuple[int, ...]) -> Count:
    """Count ``recipe`` with the values that a rehearsal of ``smaller`` reads from small images."""
    large = Rehearsal(with_changes(recipe, {"engine.device": "cpu"}), task, sites, size)
    small = Rehearsal(smaller, task, sites, small_size(size, large.workspace.network.multiples))
    log = ValueLog()
    with log.recording():
        counted = small.count()
    timed = small.train_once_more(small.sites[0].store.load(0), small.server.state.shared)
    pace = _pace(counted.training * timed.seen, timed.seconds)
    log.strip_numbers(large.workspace.network)
    try:
        with log.replaying():
            flops = large.count(watch_memory=True)
    except Exception as error:  # whatever a component does that tensors without numbers cannot
        growth = prod(size) / prod(small.size)
        flops = Counted(*(growth * number for number in astuple(counted)))
        return Count(flops, small, pace, scaled=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return Count(flops, large, pace, small, log.by_value)


def _pace(flops: float, seconds: float) -> float:
    return flops / seconds if seconds else 0.0


def small_size(size: tuple[int, ...], multiples: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest images that leave the deepest map two pixels wide, as normalisation needs more than one."""
    return tuple(min(axis, 2 * step) for axis, step in zip(size, multiples, strict=True))


def bare_step_flops(network: SegmentationNetwork, size: tuple[int, ...], batch_size: int) -> float:
    """About the FLOPs of a step without any component, by shape; infinite if the network looks at values."""
    try:
        with without_numbers():
            return 3.0 * batch_size * forward_flops(network, size)
    except DataDependentOutputException:
        return inf
