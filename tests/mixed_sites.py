"""Sites with few labels, and steps over them, for components that learn from unlabelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polyclinic.components.base import Component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore, StateMemory
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from support import tiny_site, tiny_task

CPU = torch.device("cpu")
# Few labels; fewer labels than a batch; none; all.
MIXED = {"north": (3, 4), "south": (1, 2), "west": (0, 3), "zone": (3, 0)}


def mixed_site(name: str, labelled: int, unlabelled: int, dims: int = 2) -> SiteData:
    """A tiny site whose last training images have no label."""
    full = tiny_site(name, labelled + unlabelled, dims)
    known = torch.ones(len(full.images), dtype=torch.bool)
    known[labelled : labelled + unlabelled] = False
    images, labels = full.images.batch(torch.arange(len(known)))
    labels[~known] = 0
    return SiteData(name, ImageSet(images, labels.to(torch.uint8), known, full.images.samples), full.splits)


def mixed_server(
    folder: Path,
    recipe: Recipe,
    counts: Mapping[str, tuple[int, int]] = MIXED,
    observer: Observer | None = None,
    engine: Callable[[Workspace, dict[str, Site]], InProcess] = InProcess,
    dims: int = 2,
) -> Server:
    """A server over such sites; the same folder again means resuming."""
    workspace, memory = build_workspace(recipe, tiny_task(dims)), StateMemory()
    data = [mixed_site(name, *count, dims) for name, count in counts.items()]
    sites = {one.site: Site(one, SiteStore(folder / "sites" / one.site, memory)) for one in data}
    return Server(workspace, engine(workspace, sites), list(sites), folder / "server", observer or Observer())


@torch.no_grad()
def shake(network: torch.nn.Module, seed: int, strength: float = 0.4) -> None:
    """Move every weight, and running variances upwards only."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            change = strength * torch.rand(tensor.shape, generator=generator)
            tensor.add_(change if name.endswith("running_var") else change - strength / 2)


def component_of(workspace: Workspace, name: str, state: dict[str, torch.Tensor] | None = None) -> Any:
    """The workspace's component of this name, as a site gets it."""
    found: list[Component] = workspace.fresh_components({name: state or {}})
    return next(c for c in found if c.name == name)


def site_round(workspace: Workspace, data: SiteData, batch_size: int = 3, number: int = 1) -> SiteRound:
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    return SiteRound(data.site, number, workspace.network, received, data, CPU, torch.Generator(), batch_size)


def mixed_step(site: SiteRound, progress: float = 0.5, strong_noise: float = 0.2, forward: bool = True) -> Step:
    """A step over all of the site's training images, with the forward pass done in train mode."""
    labelled, unlabelled = (site.data.training_indices(which) for which in (True, False))
    images, labels = site.data.images.batch(labelled)
    generator = torch.Generator().manual_seed(3)
    step = Step(site, site.network, images, labels, generator, site.round, 0, 0, True, progress, 0.1, indices=labelled)
    if len(unlabelled):
        step.weak = site.data.images.batch(unlabelled)[0]
        step.strong = step.weak + strong_noise * torch.rand(step.weak.shape, generator=torch.Generator().manual_seed(4))
        step.unlabelled_indices = unlabelled
    site.network.train()
    if forward:
        step.output = site.network.features(step.inputs)
    return step


def another_step(step: Step, **changes: Any) -> Step:
    """A step after this one, in which nothing has been made yet; the forward pass comes along."""
    later = replace(step, **{"index": step.index + 1, **changes})
    later.output = step.output
    return later
