"""Two rounds of a method on noise, the second one under torch's FLOP counter: what it computes, without any image.

The second, because prototypes and previous models do not exist in the first. The first site trains on one batch, each
of the others on one image, which is enough for what the server then makes of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import generator_for
from polyclinic.data.federation import Task
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site, SubmitWrite, write_now
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import AugmentationSettings, Recipe
from polyclinic.recipe.changes import with_changes


@dataclass(frozen=True)
class Rehearsal:
    """A method after two rounds, and the FLOPs of the second: a step's for each image, and the rest of the round's."""

    workspace: Workspace
    server: Server
    event: dict[str, Any]
    site: RehearsingSite
    training: float
    site_besides_steps: int
    in_server: int

    def seconds(self) -> float:
        """Let the first site train in the next round, which leaves no trace: seconds of its steps for one image."""
        state = self.server.state
        self.site.train(self.workspace, Broadcast(state.round, state.weights, state.shared), submit=lambda _: None)
        return self.site.seconds / self.site.seen


def rehearse(recipe: Recipe, task: Task, sites: list[str], size: tuple[int, ...], folder: Path) -> Rehearsal:
    """Train on noise of the spatial ``size``; a method that pools all data has one site. ``folder`` holds memories."""
    workspace = build_workspace(_rehearsed(recipe), task)
    counter, observer = flop_counter(), StrictObserver(recipe.method)
    names = sorted(sites)[: 1 if workspace.method.pooled else None]
    counts = [recipe.training.batch_size] + [1] * (len(names) - 1)
    data = [
        noise(name, count, workspace.learns_unlabelled, task, size) for name, count in zip(names, counts, strict=True)
    ]
    rehearsing = [RehearsingSite(noisy, SiteStore(folder / "sites" / noisy.site), counter) for noisy in data]
    engine = InProcess(workspace, {site.name: site for site in rehearsing})
    server = Server(workspace, engine, names, folder / "server", observer)
    server.round()
    with counter:
        server.round()
    first, in_sites = rehearsing[0], sum(site.in_round for site in rehearsing)
    workspace.load(server.state.weights)
    return Rehearsal(
        workspace,
        server,
        observer.event,
        first,
        training=first.in_steps / first.seen,
        site_besides_steps=first.in_round - first.in_steps,
        in_server=counter.get_total_flops() - in_sites,
    )


def _rehearsed(recipe: Recipe) -> Recipe:
    """One local epoch, which is then the last one; no augmentation, which is chance, and no validation.

    Where images move a mirror moves them, which costs nothing: views that are fixed need fewer passes.
    """
    rounds = max(3, recipe.training.rounds)
    once = {
        "local_epochs": 1, "steps_per_epoch": None, "rounds": rounds, "validate_every": rounds, "participation": 1.0,
    }  # fmt: skip
    changes = {
        **{f"training.{key}": value for key, value in once.items()},
        "policies.optimizer_state": "reset",
        "augmentation": AugmentationSettings(flip=float(recipe.augmentation.moves)),
        **dict.fromkeys((f"strong.{key}" for key in ("contrast", "brightness", "gamma", "blur", "noise")), 0.0),
    }
    return with_changes(recipe, changes)


def flop_counter() -> FlopCounterMode:
    """Torch's counter, with the attention of CPUs, which its own table lacks."""

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]

    def backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return sdpa_backward_flop_count(gradient, query, key, value)  # type: ignore[no-untyped-call]

    operation = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return FlopCounterMode(display=False, custom_mapping={operation: forward, gradient: backward})


def noise(site: str, count: int, mixed: bool, task: Task, size: tuple[int, ...]) -> SiteData:
    """A site with ``count`` labelled images and, if ``mixed``, as many unlabelled ones; labels hold every class."""
    generator, total = generator_for(0, "noise", site), 2 * count if mixed else count
    images = torch.rand(total, task.channels, *size, generator=generator)
    labels = torch.randint(len(task.classes), (total, *size), generator=generator, dtype=torch.uint8)
    samples = [Sample(site, str(number), str(number), None, None, None) for number in range(total)]
    none = torch.empty(0, dtype=torch.long)
    splits = {"train": torch.arange(total), "val": none, "test": none}
    return SiteData(site, ImageSet(images, labels, torch.arange(total) < count, samples), splits)


class RehearsingSite(Site):
    """Notes what its last round took: seconds in its steps, and what the counter around it has counted.

    ``seen`` is the number of images that the steps have seen.
    """

    def __init__(self, data: SiteData, store: SiteStore, counter: FlopCounterMode) -> None:
        super().__init__(data, store)
        self.counter, self.seen, self.in_steps, self.in_round, self.seconds = counter, 0, 0, 0, 0.0

    def train(self, workspace: Workspace, broadcast: Broadcast, submit: SubmitWrite = write_now) -> Update:
        """A round."""
        before = self.counter.get_total_flops()
        update = super().train(workspace, broadcast, submit)
        self.seen, self.in_round = update.steps * len(self.data.images), self.counter.get_total_flops() - before
        return update

    def _learn(self, *arguments: Any) -> Any:
        before, started = self.counter.get_total_flops(), time.perf_counter()
        result = super()._learn(*arguments)  # reads the losses at its end, which waits until a GPU is done
        self.seconds, self.in_steps = time.perf_counter() - started, self.counter.get_total_flops() - before
        return result


class StrictObserver(Observer):
    """Keeps the record of the last round, and stops where a site fails: half a round has no cost worth a table."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.event: dict[str, Any] = {}

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:  # noqa: ARG002
        """Stop with a sentence."""
        raise PolyclinicError(f"{self.method}: cost unknown, {site} {reason}; mend that or leave the method out.")

    def on_round(self, event: dict[str, Any]) -> None:
        """Keep it."""
        self.event = event
