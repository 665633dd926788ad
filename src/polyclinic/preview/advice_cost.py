"""What the advised methods cost on this federation with the advised recipe: work at the sites, bytes, what crosses.

`polyclinic cost` rehearses a round of all sites at the recipe's size, which takes seconds for each method. Here one
site takes a step on a tiny image, and another on two: the FLOPs of a step are a constant and a part that grows with its
pixels, and two points give both. The server's work is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from polyclinic.core.wording import readable_bytes
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Broadcast
from polyclinic.methods.expression import parse_method
from polyclinic.preview.rehearsal import Counted, Rehearsal
from polyclinic.preview.round_flops import round_flops, training_images
from polyclinic.preview.shape_rehearsal import Count
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.plan import RunPlan


@dataclass(frozen=True)
class MethodCost:
    """A round of a method at a site."""

    work: float
    """FLOPs at all sites over those of the first method."""
    bytes_up: int
    bytes_down: int
    """Without the weights that a validation sends once more; what depends on the number of sites is that of one."""
    kept: int
    """Weights that stay at the site, where others leave it."""
    shared: Mapping[str, Sequence[Shared]]
    """What components send beside the weights."""

    @property
    def leaves(self) -> str:
        """What a site sends, each tensor in words, with its size."""
        if not self.bytes_up:
            return "nothing"
        shared = sorted({tensor.what for own in self.shared.values() for tensor in own})
        return "; ".join([f"{readable_bytes(self.bytes_up)} a round: {self._weights}", *shared])

    @property
    def leaves_briefly(self) -> str:
        """What a site sends, each tensor by its name."""
        if not self.bytes_up:
            return "nothing"
        shared = [f"{name} ({', '.join(tensor.name for tensor in own)})" for name, own in self.shared.items()]
        return "; ".join([self._weights, *shared])

    @property
    def _weights(self) -> str:
        return f"weights but {self.kept} that stay" if self.kept else "weights"


def method_costs(plan: RunPlan, methods: Sequence[str]) -> dict[str, MethodCost]:
    """By method; the first one is what others are compared with."""
    found: dict[str, MethodCost] = {}
    first = 0.0
    for method in methods:
        flops, rehearsal = _round_at_sites(plan, method)
        first = first or flops
        workspace, state = rehearsal.workspace, rehearsal.server.state
        up = next(iter(rehearsal.observer.event["bytes_up"].values()))
        down = Broadcast(1, state.weights, state.shared).bytes
        shared = {name: own for name, own in workspace.declared().items() if own}
        found[method] = MethodCost(flops / first if first else 1.0, up, down, len(workspace.kept), shared)
    return found


def _tiny(size: tuple[int, ...], multiples: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest image whose deepest map has two pixels, along the axis with most room: norms need more than one."""
    room = [axis / step for axis, step in zip(size, multiples, strict=True)]
    return tuple(step * (2 if place == room.index(max(room)) else 1) for place, step in enumerate(multiples))


def _round_at_sites(plan: RunPlan, method: str) -> tuple[float, Rehearsal]:
    """FLOPs of a round of the recipe at all sites, and a tiny rehearsal of it."""
    recipe = with_changes(plan.recipe, {"method": method})
    size = cast("tuple[int, ...]", recipe.data.patch or recipe.data.size)  # the plan has replaced "auto"
    tiny = _tiny(size, plan.network.multiples)
    site = plan.parts[0].train_sites[:1]
    one, two = (Rehearsal(with_changes(recipe, {"training.batch_size": n}), plan.task, [*site], tiny) for n in (1, 2))
    of_one, of_two = one.count(), two.count()
    seen, batch = one.sites[0].seen, recipe.training.batch_size
    images = batch * prod(size) / prod(tiny)

    def grown(first: float, second: float) -> float:
        return first + (second - first) * (images - 1)

    step = grown(of_one.training * seen, of_two.training * two.sites[0].seen)
    besides = grown(of_one.site_besides_steps, of_two.site_besides_steps)
    # As counted at the right size, for the images of such a step.
    one.sites[0].seen = seen * batch
    count = Count(Counted(of_one.inference, step / (seen * batch), besides, server=0.0), one, pace=0.0)
    part = protocol_parts(plan.federation, recipe, parse_method(method).all_labels)[0]
    return round_flops(count, recipe, training_images(plan.federation, recipe, part))["total"], one
