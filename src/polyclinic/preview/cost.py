"""What methods cost: FLOPs, parameters, seconds and bytes, as in Table 10 of PathFL, before any run starts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from polyclinic.data.federation import Federation
from polyclinic.engines.inprocess import InProcess
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.exchange.messages import Broadcast, tensor_bytes
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.networks import parameter_count
from polyclinic.preview.rehearsal import Rehearsal, StrictObserver
from polyclinic.preview.round_flops import round_flops, training_images
from polyclinic.preview.shape_rehearsal import Count, bare_step_flops, count_flops
from polyclinic.preview.step_time import Candidate, Tell, seconds_of
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.plan import plan_run, prepare_items, require_training_data, site_data

COUNTED = "convolutions, matrix products and attention, 2 FLOPs for each multiplication with its addition"
NOT_COUNTED = (
    "normalisation, activations, pooling, interpolation, Fourier transforms, products of a matrix and a vector, biases "
    "and other work on single numbers, augmentation, the optimiser"
)


def costs(
    recipe: Recipe,
    methods: Sequence[str],
    measure: bool = False,
    repeats: int = 7,
    tell: Tell = lambda _: None,
    seconds_limit: float = 20,
    plugins: bool = False,
) -> dict[str, Any]:
    """Plain data about what each method costs with the recipe's network, image size and number of sites.

    ``measure`` also runs one round on the real images and counts what then crosses; ``repeats`` is the number of timed
    steps and predictions, for which a method has ``seconds_limit`` seconds; ``tell`` hears what is being done;
    ``plugins`` allows those that the recipe names to run.
    """
    load_plugins(recipe.plugins, plugins)
    for method in methods:
        parse_method(method)
    plan = plan_run(with_changes(recipe, {"method": methods[0]}), plugins)
    federation, recipe = plan.federation, plan.recipe
    size = cast("tuple[int, ...]", recipe.data.patch or recipe.data.size)  # the plan has replaced "auto"
    sites = list(plan.parts[0].train_sites)
    bare_step = bare_step_flops(plan.network, size, recipe.training.batch_size)
    rows: list[dict[str, Any]] = []
    candidates: list[Candidate] = []
    for number, method in enumerate(methods):
        variant, place = with_changes(recipe, {"method": method}), f"{number + 1} of {len(methods)}"
        tell(f"{method} ({place}): counting two rounds on noise")
        count = count_flops(variant, federation.task, sites, size, bare_step)
        part = protocol_parts(federation, variant, parse_method(method).all_labels)[0]
        of_round = round_flops(count, variant, training_images(federation, variant, part))
        rows.append(_counted(count, of_round))
        first = rows[0]["flops"]["round"]["total"]
        rows[-1]["ratio"] = of_round["total"] / first if first else None
        candidates.append(Candidate(variant, count))
        if measure and not rows[-1]["images_leave"]:
            tell(f"{method} ({place}): measuring one round on the images")
            _measure(federation, variant, rows[-1]["bytes"])
    for row, seconds in zip(rows, seconds_of(candidates, federation.task, repeats, seconds_limit, tell), strict=True):
        row["seconds"] = seconds
    device = candidates[0].count.pacer.workspace.device
    return {
        "federation": federation.name,
        "sites": len(sites),
        "network": recipe.network.name,
        "image": [federation.task.channels, *size],
        "batch_size": recipe.training.batch_size,
        "flops": {"counted": COUNTED, "not_counted": NOT_COUNTED},
        "timed": {"inference": "batch of 1", "training": f"batch of {recipe.training.batch_size}", "repeats": repeats,
                  "device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "methods": rows,
    }  # fmt: skip


def _counted(count: Count, of_round: dict[str, float]) -> dict[str, Any]:
    """All but the ratio, seconds and measured bytes; inference is that of evaluation and ``polyclinic predict``."""
    workspace, flops, small = count.rehearsal.workspace, count.flops, count.pacer
    return {
        "method": workspace.method.name,
        "flops": {
            "inference": flops.inference,
            "training": flops.training,
            "site_besides_steps": flops.site_besides_steps,
            "server": flops.server,
            "round": of_round,
            "rehearsed": list(small.size),
            "rehearsed_sites": len(count.rehearsal.names),
            "by_value": count.by_value,
            "scaled": count.scaled,
        },
        "parameters": sum(p.numel() for p in workspace.network.parameters()),
        "trainable": parameter_count(workspace.network),
        "training_only": sum(p.numel() for p in workspace.network.extras.parameters()),
        "images_leave": workspace.method.pooled,
        "bytes": _bytes(count.rehearsal),
    }


def _bytes(rehearsal: Rehearsal) -> dict[str, Any]:
    """What crosses between the server and a site in a round; sizes known at run time are what they were with noise."""
    workspace, state = rehearsal.workspace, rehearsal.server.state
    weights, down, shared = tensor_bytes(state.weights), state.shared, rehearsal.observer.event["shared_up"]
    if workspace.method.pooled:
        weights, down, shared = 0, {}, {}
    up = {name: by_site[rehearsal.names[0]]["bytes"] for name, by_site in shared.items()}
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
