"""The checks of a site before it works and before anything leaves: policy, task, model, number of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation
from polyclinic.data.sitedata import SiteData
from polyclinic.deploy.site.privacy_ledger import Spending
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


def require_model(workspace: Workspace, broadcast: Broadcast) -> None:
    """Raise if a broadcast lacks a weight, which would silently keep its value of the message before."""
    missing = sorted(workspace.exchanged - broadcast.weights.keys())
    if missing:
        raise PolyclinicError(f"the server's weights are not those of this model: '{missing[0]}' is missing")


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
    labelled, others = drawn_rows(workspace, data, round_number)
    images = {data.images.samples[row].name for row in labelled | others}
    return refusal_of_counts(policy, len(images), {}, rows=False)
