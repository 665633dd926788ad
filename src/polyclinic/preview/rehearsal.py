"""Two rounds of a method on noise, the second one under torch's FLOP counter: what it computes, without any image.

The second, because prototypes and previous models do not exist in the first. The first site trains on one batch, each
of the others on one image, which is enough for what the server then makes of them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import generator_for
from polyclinic.data.federation import Task
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.exchange.messages import Broadcast, Tensors, Update
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site, SubmitWrite, write_now
from polyclinic.federation.site_store import SiteState, SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks import SegmentationNetwork
from polyclinic.recipe import AugmentationSettings, Recipe
from polyclinic.recipe.changes import with_changes

_NOWHERE = Path("/nonexistent/rehearsal")  # a rehearsal writes no file


class Rehearsal:
    """A method's server and sites on images of noise of a spatial ``size``."""

    server: Server
    sites: list[RehearsingSite]

    def __init__(self, recipe: Recipe, task: Task, sites: list[str], size: tuple[int, ...]) -> None:
        self.size = size
        self.workspace = build_workspace(_rehearsed(recipe, size), task)
        self.observer = StrictObserver(recipe.method)
        # A method that pools all data has one site.
        self.names = sorted(sites)[: 1 if self.workspace.method.pooled else None]

    def count(self, watch_memory: bool = False) -> Counted:
        """Train two rounds; the FLOPs of the second. ``watch_memory`` also adds up what its steps keep."""
        counter, recipe = flop_counter(), self.workspace.recipe
        counts = [recipe.training.batch_size] + [1] * (len(self.names) - 1)
        data = [self._noise(name, count) for name, count in zip(self.names, counts, strict=True)]
        self.sites = [RehearsingSite(noisy, counter, watch_memory) for noisy in data]
        engine = InProcess(self.workspace, {site.name: site for site in self.sites})
        self.server = Server(self.workspace, engine, self.names, _NOWHERE, self.observer)
        self.server.checkpoint = _NoCheckpoint(_NOWHERE)
        self.server.round()
        with counter:
            self.server.round()
        first, in_sites = self.sites[0], sum(site.in_round for site in self.sites)
        return Counted(
            inference=forward_flops(self.workspace.network, self.size),
            training=first.in_steps / first.seen,
            site_besides_steps=first.in_round - first.in_steps,
            server=counter.get_total_flops() - in_sites,
        )

    def train_once_more(self, state: SiteState, shared: dict[str, Tensors]) -> RehearsingSite:
        """The first site after the third round, from this memory and what the server sent; nothing remembers it."""
        site = RehearsingSite(self._noise(self.names[0], self.workspace.recipe.training.batch_size), flop_counter())
        site.store = MemoryStore(state)
        broadcast = Broadcast(2, self.workspace.initial_exchanged, shared)
        site.train(self.workspace, broadcast, submit=lambda _: None)
        return site

    def _noise(self, name: str, count: int) -> SiteData:
        return noise(name, count, self.workspace.learns_unlabelled, self.workspace.task, self.size)


@dataclass(frozen=True)
class Counted:
    """FLOPs of a prediction, of a step for each of its images, and of the rest of a round at its two ends."""

    inference: float
    training: float
    site_besides_steps: float
    server: float


def _rehearsed(recipe: Recipe, size: tuple[int, ...]) -> Recipe:
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
        "data.size": size,
        "data.patch": None if recipe.data.patch is None else size,
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
    counter = FlopCounterMode(display=False, custom_mapping={operation: forward, gradient: backward})
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    return counter


class _NoModules:
    """In the place of the counter's notes on modules, whose hooks do not stand gradients inside of a loss (FedMix)."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def forward_flops(network: SegmentationNetwork, size: tuple[int, ...]) -> int:
    """FLOPs of a prediction for one image, as evaluation and ``polyclinic predict`` make it."""
    counter, device = flop_counter(), next(network.parameters()).device
    image = torch.zeros(1, network.channels, *size, device=device)
    with counter:
        predict_probabilities(network, image, multiple=network.multiples)
    return int(counter.get_total_flops())


def noise(site: str, count: int, mixed: bool, task: Task, size: tuple[int, ...]) -> SiteData:
    """A site with ``count`` labelled images and, if ``mixed``, as many unlabelled ones; labels hold every class."""
    generator, total = generator_for(0, "noise", site), 2 * count if mixed else count
    images = torch.rand(total, task.channels, *size, generator=generator)
    labels = torch.randint(len(task.classes), (total, *size), generator=generator, dtype=torch.uint8)
    samples = [Sample(site, str(number), str(number), None, None, None) for number in range(total)]
    none = torch.empty(0, dtype=torch.long)
    splits = {"train": torch.arange(total), "val": none, "test": none}
    return _NoiseData(site, _Noise(images, labels, torch.arange(total) < count, samples), splits, count)


class _Noise(ImageSet):
    """Images as large as a patch: the patch is the image, and nobody has to look for foreground."""

    def patches(self, indices: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.batch(indices)

    def will_need(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class _NoiseData(SiteData):
    """Knows which images have labels without a look at any tensor."""

    count: int

    def training_indices(self, labelled: bool | None = None) -> Tensor:
        first, last = 0 if labelled is not False else self.count, len(self.images) if not labelled else self.count
        return torch.arange(first, last)


class RehearsingSite(Site):
    """Notes what its last round took: seconds in its steps, and what the counter around it has counted.

    ``seen`` is the number of images that the steps have seen, ``kept`` the bytes that they kept for backward passes.
    """

    def __init__(self, data: SiteData, counter: FlopCounterMode, watch_memory: bool = False) -> None:
        super().__init__(data, MemoryStore())
        self.counter, self.watch_memory = counter, watch_memory
        self.seen, self.in_steps, self.in_round, self.kept, self.seconds = 0, 0, 0, 0, 0.0

    def train(self, workspace: Workspace, broadcast: Broadcast, submit: SubmitWrite = write_now) -> Update:
        """A round."""
        before = self.counter.get_total_flops()
        update = super().train(workspace, broadcast, submit)
        self.seen, self.in_round = update.steps * len(self.data.images), self.counter.get_total_flops() - before
        return update

    def _learn(self, *arguments: Any) -> Any:
        before, started = self.counter.get_total_flops(), time.perf_counter()
        storages: dict[int, int] = {}
        with _noting_kept(storages) if self.watch_memory else nullcontext():
            result = super()._learn(*arguments)  # reads the losses at its end, which waits until a GPU is done
        self.seconds, self.in_steps = time.perf_counter() - started, self.counter.get_total_flops() - before
        self.kept = sum(storages.values())
        return result


def _noting_kept(storages: dict[int, int]) -> AbstractContextManager[None]:
    """Note the sizes of all tensors that autograd keeps."""

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


class MemoryStore(SiteStore):
    """A site's memory without a disk: the newest state alone."""

    def __init__(self, state: SiteState | None = None) -> None:
        super().__init__(_NOWHERE)
        self.state, self._ledgers = state or SiteState(), dict[str, Tensors]()

    def load(self, before: int) -> SiteState:  # noqa: ARG002
        """A copy that the round may change; tensors are replaced in it, never written to."""
        fresh = copy.copy(self.state)
        fresh.components = {name: dict(tensors) for name, tensors in fresh.components.items()}
        return fresh

    def save(self, state: SiteState) -> None:
        """Keep it."""
        self.state = state

    def ledgers(self) -> dict[str, Tensors]:
        """What components never take back."""
        return self._ledgers

    def save_ledgers(self, ledgers: Mapping[str, Tensors]) -> None:
        """Keep them."""
        self._ledgers = dict(ledgers)


class _NoCheckpoint(Checkpoint):
    """Nothing is resumed, so nothing is written."""

    def save(self, *_: Any) -> None:
        pass

    def can_take_back(self, number: int) -> bool:  # noqa: ARG002
        return False


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
