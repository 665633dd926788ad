"""What is timed in a federation: the phases of server and sites, each training step, and every hook of a component.

All of it is wrapped from outside while a timeline records, so that a run that nobody profiles runs the plain code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from polyclinic.components.base import Component
from polyclinic.core.background_writer import BackgroundWriter
from polyclinic.core.timing import Timeline, Wraps, record
from polyclinic.data.augmentation import Augmentation
from polyclinic.federation import scoring, server, training
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.training import LocalTraining
from polyclinic.federation.update_bounds import UpdateBounds
from polyclinic.federation.workspace import Workspace
from polyclinic.networks import SegmentationNetwork

HOOKS = (
    "receive", "make_optimizer", "on_images", "objective", "loss", "on_gradients", "after_step", "after_epoch", "share",
    "on_update", "screen", "aggregate", "combine", "unseen_weights",
)  # fmt: skip

PHASES: tuple[tuple[Any, str, str], ...] = (
    (Server, "_aggregate", "aggregation"),
    (Server, "_combine", "combine"),
    (Server, "_validate", "validation"),
    (server, "update_problem", "checks"),
    (server, "aggregate_problem", "checks"),
    (UpdateBounds, "accept", "checks"),
    (Checkpoint, "save", "checkpoint"),
    (Site, "_state_for", "load state"),
    (Site, "_learn", "local training"),
    (Site, "_require_finite", "checks"),
    (SiteStore, "save_ledgers", "save state"),
    (BackgroundWriter, "wait", "waiting for the disk"),
    (Workspace, "load", "load weights"),
    (Workspace, "exchanged_weights", "copy weights"),
    (Workspace, "kept_weights", "copy weights"),
    (Workspace, "predict", "prediction"),
    (scoring, "case_metrics", "metrics"),
    (scoring, "dice_per_image", "metrics"),
    (LocalTraining, "_load", "load batch"),
    (LocalTraining, "_add_views", "unlabelled views"),
    (LocalTraining, "_train", "step"),
    (LocalTraining, "_gradients", "gradients"),
    (LocalTraining, "_losses", "losses"),
    (training, "supervised_loss", "supervised loss"),
    (LocalTraining, "_note", "note losses"),
    (Augmentation, "__call__", "augmentation"),
    (SegmentationNetwork, "features", "forward"),
    (SegmentationNetwork, "forward", "forward"),
    (torch.autograd, "backward", "backward"),
)
"""Owner, function and name of what is timed without more ado; a span inside of another one counts in its place."""


@contextmanager
def profiled(timeline: Timeline) -> Iterator[Timeline]:
    """Record into a timeline; the plain code is back at the end."""
    wrapped = Wraps(timeline)
    try:
        for owner, function, name in PHASES:
            wrapped.time(owner, function, name)
        wrapped.time(Server, "_attempt", "round", lambda one: {"number": one.state.round})
        # Sites train while an aggregating component walks over the updates, and are no part of it.
        wrapped.time_each(Server, "_accepted", "waiting for updates", component="")
        wrapped.time(Site, "train", "site", _site)
        wrapped.time(Site, "evaluate", "scoring", _site)
        wrapped.time(SiteStore, "save", "save state", lambda _, state: {"number": state.round})
        wrapped.time_each(LocalTraining, "_steps", "batch")
        wrapped.replace(LocalTraining, "__init__", lambda original: _with_timed_optimizer(timeline, original))
        wrapped.replace(Workspace, "fresh_components", lambda original: _with_timed_hooks(timeline, original))
        wrapped.replace(SegmentationNetwork, "insert", lambda original: _with_timed_module(wrapped, original))
        with record(timeline):
            yield timeline
    finally:
        wrapped.undo()


def _site(site: Site, _: Workspace, broadcast: Any, *__: Any, **___: Any) -> dict[str, Any]:
    """Whose round it is."""
    return {"site": site.name, "number": broadcast.round, "component": ""}


def _with_timed_module(wrapped: Wraps, original: Callable[..., None]) -> Callable[..., None]:
    """What a component puts into the network is timed inside of the forward pass, as the component's own.

    By its class: copies of the network must go on with their own weights.
    """

    @wraps(original)
    def insert(self: SegmentationNetwork, tap: str, name: str, module: nn.Module) -> None:
        original(self, tap, name, module)
        kind = type(module)
        if "forward" in vars(kind) and not kind.__module__.startswith("torch.") and kind not in seen:
            seen.add(kind)
            wrapped.time(kind, "forward", "module", lambda *_, **__: {"component": name})

    seen: set[type] = set()
    return insert


def _with_timed_hooks(timeline: Timeline, original: Callable[..., list[Component]]) -> Callable[..., list[Component]]:
    @wraps(original)
    def fresh_components(*arguments: Any, **named: Any) -> list[Component]:
        components = original(*arguments, **named)
        for component in components:
            for hook in HOOKS:
                if getattr(type(component), hook) is not getattr(Component, hook):
                    setattr(component, hook, _timed_hook(timeline, component, hook))
        return components

    return fresh_components


def _timed_hook(timeline: Timeline, component: Component, hook: str) -> Callable[..., Any]:
    method, name = getattr(component, hook), component.name

    @wraps(method)
    def timed(*arguments: Any, **named: Any) -> Any:
        with timeline.span(hook, component=name):
            return method(*arguments, **named)

    return timed


def _with_timed_optimizer(timeline: Timeline, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def start(self: LocalTraining, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        step = self.optimizer.step

        @wraps(step)
        def timed(*inner: Any, **more: Any) -> Any:
            with timeline.span("optimiser"):
                return step(*inner, **more)

        self.optimizer.step = timed  # type: ignore[method-assign]

    return start
