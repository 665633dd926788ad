"""Which images a round of training draws; the order depends on the recipe's seed, the site and the round alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from polyclinic.core.seeds import generator_for
from polyclinic.data.batches import epoch_batches
from polyclinic.data.sitedata import SiteData
from polyclinic.federation.workspace import Workspace

_STEPS_AHEAD = 2  # that the disk may work for, while the network learns


def step_generator(workspace: Workspace, site: str, round_number: int, epoch: int, index: int) -> torch.Generator:
    """The generator of a step: it draws the patches of labelled images first."""
    return generator_for(workspace.recipe.seed, site, round_number, "step", epoch, index)


def batches_read_ahead(
    workspace: Workspace, data: SiteData, round_number: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same as ``drawn_batches``, while images of the steps to come are read from the disk, where they are there."""
    waiting: deque[tuple[Tensor, Tensor]] = deque()
    patch, foreground = workspace.recipe.data.patch, workspace.recipe.data.foreground
    for index, (rows, others) in enumerate(drawn_batches(workspace, data, round_number, epoch)):
        if patch is None:
            data.images.will_need(torch.cat([rows, others]))
        else:  # patches of unlabelled images are drawn after the augmentation, so nobody knows them yet
            generator = step_generator(workspace, data.site, round_number, epoch, index)
            data.images.will_need(rows, patch, generator, foreground)
        waiting.append((rows, others))
        if len(waiting) > _STEPS_AHEAD:
            yield waiting.popleft()
    yield from waiting


def drawn_batches(
    workspace: Workspace, data: SiteData, round_number: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the labelled and of the unlabelled images of each step of an epoch."""
    size = workspace.recipe.training.batch_size
    unlabelled = data.training_indices(False) if workspace.learns_unlabelled else None
    order = generator_for(workspace.recipe.seed, data.site, round_number, "batches", epoch)
    return epoch_batches(data.training_indices(True), unlabelled, size, order, wanted_steps(workspace, data))


def wanted_steps(workspace: Workspace, data: SiteData) -> int | None:
    """``training.steps_per_epoch``; of pooled images the steps that their sites would take together."""
    steps = workspace.recipe.training.steps_per_epoch
    return None if steps is None else steps * data.learning_sites(workspace.learns_unlabelled)


def drawn_rows(
    workspace: Workspace, data: SiteData, round_number: int, epochs: Iterable[int] | None = None
) -> tuple[set[int], set[int]]:
    """Rows of the labelled and of the unlabelled images that all epochs of a round, or some, draw, each once."""
    everything = len(data.training_indices(None if workspace.learns_unlabelled else True))
    labelled: set[int] = set()
    others: set[int] = set()
    for epoch in range(workspace.recipe.training.local_epochs) if epochs is None else epochs:
        for rows, unlabelled in drawn_batches(workspace, data, round_number, epoch):
            labelled.update(rows.tolist())
            others.update(unlabelled.tolist())
            if len(labelled) + len(others) == everything:
                return labelled, others
    return labelled, others
