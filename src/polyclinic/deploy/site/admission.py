"""What is asked before a site does anything, and before anything leaves it: policy, task, model, numbers of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation
from polyclinic.data.sitedata import SiteData
from polyclinic.exchange.messages import Broadcast, tensor_bytes
from polyclinic.federation.policy import (
    Policy,
    refusal_of_bytes,
    refusal_of_counts,
    refusal_of_method,
    refusal_of_plugins,
    refusal_of_privacy,
)
from polyclinic.federation.store import SiteStore
from polyclinic.federation.workspace import Workspace


class RefusedError(Exception):
    """The site's policy says no; the sentence goes to both ends."""


def refuse(reason: str | None) -> None:
    """Stop with a reason, if there is one."""
    if reason is not None:
        raise RefusedError(reason)


def refusal(workspace: Workspace, policy: Policy) -> str | None:
    """Why a method may not run here, as far as that is known before it does."""
    protocol = workspace.recipe.protocol
    trainings = protocol.folds if protocol.kind == "k-fold" else 1
    return (
        refusal_of_plugins(policy, workspace.recipe.plugins)
        or refusal_of_method(policy, workspace.method.name, workspace.declared())
        or refusal_of_privacy(policy, workspace.components, trainings * workspace.recipe.training.rounds)
        or refusal_of_bytes(policy, tensor_bytes(workspace.initial_exchanged))
    )


def task_of(federation: Federation) -> dict[str, Any]:
    """The task as it travels; through JSON, because tuples become lists on the way."""
    table: dict[str, Any] = {**asdict(federation.task), "volumes_as_slices": federation.volumes_as_slices}
    return dict(json.loads(json.dumps(table)))


def require_task(federation: Federation, agreed: Mapping[str, Any]) -> None:
    """Classes in another order would be learnt as one another, and nobody would see it in the numbers."""
    own = task_of(federation)
    wrong = next((key for key in own if agreed and own[key] != agreed.get(key)), None)
    if wrong is not None:
        raise PolyclinicError(
            f"this site has another task than the federation: {wrong} = {own[wrong]}, expected {agreed.get(wrong)}; "
            "let all sites use one federation.toml."
        )


def require_model(workspace: Workspace, broadcast: Broadcast) -> None:
    """What a broadcast leaves out would stay as the last message left it."""
    missing = sorted(workspace.exchanged - broadcast.weights.keys())
    if missing:
        raise PolyclinicError(f"the server's weights are not those of this model: '{missing[0]}' is missing")


def releases(run: Path) -> int:
    """Updates with noise that a run has had of the site, as the ledgers count them: all its parts saw these images."""
    ledgers = [SiteStore(file.parent).ledgers() for file in run.glob("*/ledger.safetensors")]
    return sum(len(ledger.get("privacy", {}).get("releases", ())) for ledger in ledgers)


def too_few(workspace: Workspace, data: SiteData, policy: Policy) -> str | None:
    """Why too few images stand behind what would leave, or ``None``; slices of a volume are one image."""
    samples, settings = data.images.samples, workspace.recipe.training
    indices = data.training_indices(None if workspace.learns_unlabelled else True)
    images = len({samples[int(index)].name for index in indices})
    if settings.steps_per_epoch is not None:  # the server's: a single step of a single image must not leave either
        drawn = settings.local_epochs * settings.steps_per_epoch * settings.batch_size
        images = min(images, drawn * (2 if workspace.learns_unlabelled else 1))
    rows = any(one.prototypes for declared in workspace.declared().values() for one in declared)
    by_class: dict[str, set[str]] = {name: set() for name in workspace.task.classes}
    for index in data.training_indices(True) if rows else ():
        for number in torch.unique(data.images.batch(index[None])[1]).tolist():
            if number < len(workspace.task.classes):
                by_class[workspace.task.classes[number]].add(samples[int(index)].name)
    return refusal_of_counts(policy, images, {name: len(found) for name, found in by_class.items()}, rows)
