"""The engine that a recipe gets by default: what this machine has room for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyclinic.core.machine import available_cores
from polyclinic.core.memory import free_memory
from polyclinic.core.wording import counted
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.registry import engine
from polyclinic.engines.workers import Workers
from polyclinic.engines.workers.process import can_start_workers
from polyclinic.federation.engine import Engine
from polyclinic.federation.footprint import training_bytes
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace

_SHARE_OF_MEMORY = 0.8  # of the free memory; the rest is for the images of other programs and for the server


@dataclass(frozen=True)
class Machine:
    """What a run may use; ``places`` are cores, or GPUs where it trains on those."""

    places: int
    kind: str
    memory: int


@dataclass(frozen=True)
class Choice:
    """How many processes train side by side, 1 for this one alone, and why."""

    workers: int
    reason: str


def choose(machine: Machine, sites: int, threads: int, wanted: int | None, worker_bytes: int) -> Choice:
    """The number of processes: one for each core or GPU, no more than sites, and no more than fit into memory.

    ``wanted`` is the recipe's own number, which only the number of sites limits.
    """
    if wanted is not None:
        workers, limits = min(wanted, sites), [f"engine.workers = {wanted}"]
        return Choice(workers, ", ".join(limits + ([counted(sites, "site")] if sites < wanted else [])))
    places = max(1, machine.places // threads) if machine.kind == "core" else machine.places
    fitting = max(1, int(_SHARE_OF_MEMORY * machine.memory) // max(1, worker_bytes))
    workers = max(1, min(places, sites, fitting))
    reasons = [counted(machine.places, machine.kind), counted(sites, "site")]
    if fitting < min(places, sites):
        reasons.append(f"{machine.memory / 1e9:.1f} GB free for about {worker_bytes / 1e9:.1f} GB a process")
    return Choice(workers, ", ".join(reasons))


@engine("auto", "worker processes where this machine has room for several, else this process alone")
def open_auto(workspace: Workspace, sites: dict[str, Site], observer: Observer) -> Engine:
    """The engine of :func:`choose`; all give the same weights."""
    choice = choose_here(workspace, sites)
    threads = counted(workspace.recipe.engine.threads, "thread")
    if choice.workers > 1:
        chosen: Engine = Workers(workspace, sites, observer, choice.workers)
        chosen.about = f"{choice.workers} worker processes, {threads} each ({choice.reason})"
    else:
        chosen = InProcess(workspace, sites, observer)
        chosen.about = f"sites one after another in this process, {threads} ({choice.reason})"
    return chosen


def choose_here(workspace: Workspace, sites: dict[str, Site]) -> Choice:
    """The choice for this machine and these sites."""
    settings, device = workspace.recipe.engine, workspace.device
    if not can_start_workers() or device.type not in ("cpu", "cuda"):
        return Choice(1, f"no worker processes on {device.type} here")
    if device.type == "cuda":
        gpus = torch.cuda.device_count() if settings.device in ("auto", "cuda") else 1
        return choose(Machine(gpus, "GPU", free_memory()), len(sites), settings.threads, settings.workers, 2 * 10**9)
    if settings.workers is not None or available_cores() // settings.threads <= 1:
        return choose(Machine(available_cores(), "core", 0), len(sites), settings.threads, settings.workers, 0)
    needed = training_bytes(workspace, _image_size(workspace, sites))
    return choose(Machine(available_cores(), "core", free_memory()), len(sites), settings.threads, None, needed)


def _image_size(workspace: Workspace, sites: dict[str, Site]) -> tuple[int, ...]:
    """The size of what the network is trained on."""
    data = workspace.recipe.data
    if data.patch is not None:
        return data.patch
    if data.size != "auto":
        return data.size
    first = next(iter(sites.values())).data
    return tuple(first.images.batch(torch.tensor([0]))[0].shape[2:])
