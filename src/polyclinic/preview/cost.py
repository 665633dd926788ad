"""What methods cost: FLOPs, parameters, seconds and bytes, as in Table 10 of PathFL, before any run starts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from polyclinic.core.seeds import generator_for
from polyclinic.data.federation import Federation
from polyclinic.engines.inprocess import InProcess
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.exchange.messages import Broadcast, tensor_bytes
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.networks import SegmentationNetwork, parameter_count
from polyclinic.preview.rehearsal import Rehearsal, StrictObserver, flop_counter, rehearse
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.plan import plan_run, prepare_items, require_training_data, site_data

COUNTED = "convolutions, matrix products and attention, 2 FLOPs for each multiplication with its addition"
NOT_COUNTED = (
    "normalisation, activations, pooling, interpolation, Fourier transforms, products of a matrix and a vector, biases "
    "and other work on single numbers, augmentation, the optimiser"
)
Tell = Callable[[str], None]


def costs(
    recipe: Recipe, methods: Sequence[str], measure: bool = False, repeats: int = 7, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Plain data about what each method costs with the recipe's network, image size and number of sites.

    ``measure`` also runs one round on the real images and counts what then crosses; ``repeats`` is the number of timed
    steps and predictions; ``tell`` hears what is being done.
    """
    load_plugins(recipe.plugins)
    for method in methods:
        parse_method(method)
    plan = plan_run(with_changes(recipe, {"method": methods[0]}))
    federation, recipe = plan.federation, plan.recipe
    size = cast("tuple[int, ...]", recipe.data.patch or recipe.data.size)  # the plan has replaced "auto"
    sites = list(plan.parts[0].train_sites)
    image = torch.rand(1, federation.task.channels, *size, generator=generator_for(recipe.seed, "cost"))
    rows: list[dict[str, Any]] = []
    rehearsals: list[Rehearsal] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, method in enumerate(methods):
            variant = with_changes(recipe, {"method": method})
            tell(f"{method}: counting two rounds on noise")
            rehearsals.append(rehearse(variant, federation.task, sites, size, Path(folder) / str(number)))
            image = image.to(rehearsals[-1].workspace.device)
            rows.append(_counted(rehearsals[-1], image))
            if measure and not rows[-1]["images_leave"]:
                tell(f"{method}: measuring one round on the images")
                _measure(federation, variant, rows[-1]["bytes"])
        tell(f"timing {repeats} steps and predictions of each method")
        _add_seconds(rows, rehearsals, image, repeats)
    return {
        "federation": federation.name,
        "sites": len(sites),
        "network": recipe.network.name,
        "image": list(image.shape[1:]),
        "batch_size": recipe.training.batch_size,
        "flops": {"counted": COUNTED, "not_counted": NOT_COUNTED},
        "timed": {"inference": "batch of 1", "training": f"batch of {recipe.training.batch_size}", "repeats": repeats,
                  "device": str(image.device), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "methods": rows,
    }  # fmt: skip


def _counted(rehearsal: Rehearsal, image: Tensor) -> dict[str, Any]:
    """Everything but seconds and measured bytes; inference is that of evaluation and ``polyclinic predict``."""
    workspace, counter = rehearsal.workspace, flop_counter()
    with counter:
        predict_probabilities(workspace.network, image, multiple=workspace.network.multiple)
    return {
        "method": workspace.method.name,
        "flops": {
            "inference": counter.get_total_flops(),
            "training": rehearsal.training,
            "site_besides_steps": rehearsal.site_besides_steps,
            "server": rehearsal.in_server,
        },
        "parameters": sum(p.numel() for p in workspace.network.parameters()),
        "trainable": parameter_count(workspace.network),
        "training_only": sum(p.numel() for p in workspace.network.extras.parameters()),
        "images_leave": workspace.method.pooled,
        "bytes": _bytes(rehearsal),
    }


def _bytes(rehearsal: Rehearsal) -> dict[str, Any]:
    """What crosses between the server and a site in a round; sizes known at run time are what they were with noise."""
    workspace, state = rehearsal.workspace, rehearsal.server.state
    weights, down, shared = tensor_bytes(state.weights), state.shared, rehearsal.event["shared_up"]
    if workspace.method.pooled:
        weights, down, shared = 0, {}, {}
    up = {name: by_site[rehearsal.site.name]["bytes"] for name, by_site in shared.items()}
    fixed = {n for n, own in workspace.declared().items() if all(isinstance(s, int) for one in own for s in one.shape)}
    late_up = {name: size for name, size in up.items() if name not in fixed}
    late_down = {name: tensor_bytes(tensors) for name, tensors in down.items()}
    declared = sum(up.values()) - sum(late_up.values())
    return {
        "up": {"weights": weights, "declared": declared, "run_time": late_up, "measured": None},
        "down": {"weights": weights, "declared": 0, "run_time": late_down, "measured": None},
        "validation": weights,
    }


def _measure(federation: Federation, recipe: Recipe, counted: dict[str, Any]) -> None:
    """Add the bytes of each site on the real images: up, and down in the round after, when components have answered."""
    rounds = max(2, recipe.training.rounds)
    shortened = with_changes(recipe, {"training.rounds": rounds, "training.validate_every": rounds})
    workspace = build_workspace(shortened, federation.task)
    observer, part = StrictObserver(recipe.method), protocol_parts(federation, recipe)[0]
    prepared = {site: prepare_items(federation, recipe, part.items(federation, site)) for site in part.train_sites}
    data = [site_data(site, images, part) for site, images in prepared.items()]
    for site in data:
        require_training_data(site, workspace)
    with tempfile.TemporaryDirectory() as folder:
        sites = {site.site: Site(site, SiteStore(Path(folder) / site.site)) for site in data}
        server = Server(workspace, InProcess(workspace, sites), list(sites), Path(folder), observer)
        server.round()
    down = Broadcast(1, server.state.weights, server.state.shared).bytes
    counted["up"]["measured"] = observer.event["bytes_up"]
    counted["down"]["measured"] = dict.fromkeys(observer.event["bytes_up"], down)


def _add_seconds(rows: Sequence[dict[str, Any]], rehearsals: Sequence[Rehearsal], image: Tensor, repeats: int) -> None:
    """Add the seconds that an image takes, in prediction and in training."""
    predicting = [partial(_prediction_seconds, one.workspace.network, image) for one in rehearsals]
    training = [one.seconds for one in rehearsals]
    inference, steps = take_turns(predicting, repeats), take_turns(training, repeats)
    for row, *taken in zip(rows, inference, steps, strict=True):
        kinds = zip(("inference", "training"), taken, strict=True)
        row["seconds"] = {kind: {"median": median(all_), "all": all_} for kind, all_ in kinds}


def take_turns(work: Sequence[Callable[[], float]], repeats: int) -> list[list[float]]:
    """The seconds that each work reports; all take turns, so that a noisy machine disturbs all alike."""
    taken: list[list[float]] = [[] for _ in work]
    for turn in range(-1, repeats):  # the turn before the first warms up
        for number in range(len(work))[:: -1 if turn % 2 else 1]:
            seconds = work[number]()
            if turn >= 0:
                taken[number].append(seconds)
    return taken


def _prediction_seconds(network: SegmentationNetwork, image: Tensor) -> float:
    started = time.perf_counter()
    # Reading a number waits until a GPU is done.
    float(predict_probabilities(network, image, multiple=network.multiple).flatten()[0])
    return time.perf_counter() - started
