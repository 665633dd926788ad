"""The checks of a site before it works and before anything leaves: policy, task, model, number of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from polyclinic.components.base import Component
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import printable_line
from polyclinic.data.federation import Federation
from polyclinic.data.sitedata import SiteData
from polyclinic.deploy.site.privacy_ledger import Spending
from polyclinic.exchange.broadcast_checks import broadcast_problem
from polyclinic.exchange.messages import Broadcast, tensor_bytes
from polyclinic.federation.drawn_images import drawn_rows
from polyclinic.federation.site_policy import (
    Policy,
    refusal_of_bytes,
    refusal_of_counts,
    refusal_of_method,
    refusal_of_plugins,
    refusal_of_privacy,
)
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe


class RefusedError(Exception):
    """The site's policy does not allow something; its sentence goes to the site's log and to the server."""


def refuse(reason: str | None) -> None:
    """Raise :class:`RefusedError` if there is a reason."""
    if reason is not None:
        raise RefusedError(reason)


def refusal(workspace: Workspace, policy: Policy, spending: Spending) -> str | None:
    """Why a method may not run here, as far as that can be told before it runs, or ``None``."""
    trainings = workspace.recipe.protocol.trainings
    planned = max(0, trainings * workspace.recipe.training.rounds - spending.of_run)
    return (
        refusal_of_plugins(policy, workspace.recipe.plugins)
        or refusal_of_method(policy, workspace.method.name, workspace.declared())
        or refusal_of_pictures(workspace)
        or refusal_of_privacy(policy, workspace.components, spending.noises, planned)
        or refusal_of_bytes(policy, tensor_bytes(workspace.initial_exchanged))
    )


def task_of(federation: Federation) -> dict[str, Any]:
    """The task as plain data; through JSON, so that tuples are the lists that a message holds."""
    table: dict[str, Any] = {**asdict(federation.task), "volumes_as_slices": federation.volumes_as_slices}
    return dict(json.loads(json.dumps(table)))


def require_task(federation: Federation, agreed: Mapping[str, Any]) -> None:
    """Raise if the site's task is not the agreed one: with classes in another order a model would learn nonsense."""
    task = task_of(federation)
    wrong = next((key for key in task if agreed and task[key] != agreed.get(key)), None)
    if wrong is not None:
        raise PolyclinicError(
            f"this site has another task than the federation: {wrong} = {task[wrong]}, expected {agreed.get(wrong)}; "
            "let all sites use one federation.toml."
        )


def require_model(workspace: Workspace, broadcast: Broadcast, trains: bool = True) -> None:
    """Raise if what a broadcast holds is not exactly what this site's own model exchanges and its components take.

    A missing weight would silently keep its value of the message before, one too many replace what the site keeps, and
    one of another shape would be spread over many, so that a single number of noise is too. A site that only scores may
    also be given all weights that sites keep, because it may be one that never trained.
    """
    expected = {**workspace.initial_exchanged, **({} if trains else workspace.initial_kept)}
    missing = sorted(workspace.exchanged - broadcast.weights.keys())
    unknown = sorted(broadcast.weights.keys() - expected.keys())
    if missing:
        raise PolyclinicError(f"the server's weights are not those of this model: '{missing[0]}' is missing")
    if unknown:
        raise PolyclinicError(
            f"the server's weights are not those of this model: '{printable_line(unknown[0])}' is not one that this "
            "method exchanges"
        )
    for name, tensor in broadcast.weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            raise PolyclinicError(
                f"the server's weights are not those of this model: '{name}' came as {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}, expected {wanted.dtype} of shape {tuple(wanted.shape)}"
            )
    problem = broadcast_problem(broadcast.shared, workspace.returned())
    if problem is not None:
        raise PolyclinicError(f"what the server sends beside the weights does not fit this method: {problem}")


def too_few(workspace: Workspace, data: SiteData, policy: Policy) -> str | None:
    """Why too few images stand behind what would leave, or ``None``; slices of a volume are one image."""
    samples, settings = data.images.samples, workspace.recipe.training
    indices = data.training_indices(None if workspace.learns_unlabelled else True)
    images = len({samples[int(index)].name for index in indices})
    if settings.steps_per_epoch is not None:  # of the server: one step on one image must not leave either
        drawn = settings.local_epochs * settings.steps_per_epoch * settings.batch_size
        images = min(images, drawn * (2 if workspace.learns_unlabelled else 1))
    rows = any(shared.prototypes for declared in workspace.declared().values() for shared in declared)
    by_class: dict[str, set[str]] = {name: set() for name in workspace.task.classes}
    for index in data.training_indices(True) if rows else ():
        for number in torch.unique(data.images.batch(index[None])[1]).tolist():
            if number < len(workspace.task.classes):
                by_class[workspace.task.classes[number]].add(samples[int(index)].name)
    counts = {name: len(names) for name, names in by_class.items()}
    return refusal_of_counts(policy, images, counts, rows)


def too_few_drawn(workspace: Workspace, data: SiteData, policy: Policy, round_number: int) -> str | None:
    """Why the steps of a round rest on too few images, or ``None``: the order of images is the server's seed's."""
    if policy.minimum_images == 1:
        return None
    last = workspace.recipe.training.local_epochs - 1
    reason = None
    for epochs in (None, [last]) if _shares_last_epoch(workspace) else (None,):
        labelled, others = drawn_rows(workspace, data, round_number, epochs)
        images = {data.images.samples[row].name for row in labelled | others}
        reason = reason or refusal_of_counts(policy, len(images), {}, rows=False)
    return reason


def _shares_last_epoch(workspace: Workspace) -> bool:
    """Whether a component shares numbers of the last local epoch, which may draw fewer images than the round does."""
    return any(c.rests_on_last_epoch and c.leaves(workspace.network) for c in workspace.components)


def refusal_of_pictures(workspace: Workspace) -> str | None:
    """Why pictures may not leave because nobody can tell of which cases they are, or ``None``."""
    for component in workspace.components:
        declared = any(one.pictures_of is not None for one in component.leaves(workspace.network))
        if declared and type(component).pictures is Component.pictures:
            return f"{component.name} does not say which images its pictures are means of (pictures)"
    return None


def require_round(recipe: Recipe, broadcast: Broadcast) -> None:
    """Raise for a round that the recipe has not.

    Beyond the last round a schedule of the learning rate may be 0 or below, and then an update rests on fewer images
    than were drawn for it.
    """
    if not 0 <= broadcast.round < recipe.training.rounds:
        raise PolyclinicError(
            f"the server asks for round {broadcast.round}, and the recipe has rounds 0 to {recipe.training.rounds - 1}"
        )
