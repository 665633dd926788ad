"""The work that a server may ask for: steps, sizes and memory, computed from the recipe before anything is built."""

from __future__ import annotations

from math import prod

from polyclinic.data.batches import steps_per_epoch
from polyclinic.data.sitedata import SiteData
from polyclinic.federation.site_policy import Policy
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe

# No honest recipe comes near these; each of them alone could fill the memory or block the site.
_LARGEST: dict[str, float] = {
    "training.rounds": 1_000_000,
    "training.batch_size": 100_000,
    "evaluation.batch_size": 100_000,
    "evaluation.overlap": 0.95,
    "protocol.folds": 1000,
    "protocol.repeats": 1000,
    "data.neighbours": 100,
    "network.width": 4096,
    "network.layers": 256,
    "network.embedding": 16_384,
    "network.mlp": 65_536,
    "network.heads": 1024,
    "engine.threads": 1024,
    "training.poly_power": 10,  # a steep schedule makes the first image of a round count alone
    "training.weight_decay": 10,
}
_COPIES_OF_WEIGHTS = 6  # network, gradients, two moments of the optimiser, what was received, what leaves
_MAPS_OF_A_STEP = 4  # at full resolution: two convolutions each in encoder and decoder, kept for the gradient


def refusal_of_sizes(policy: Policy, recipe: Recipe) -> str | None:
    """Why a recipe asks for too much, whatever the site's images are, or ``None``."""
    for key, largest in _LARGEST.items():
        section, name = key.split(".")
        value = getattr(getattr(recipe, section), name, None)
        if isinstance(value, int | float) and value > largest:
            return f"the recipe's {key} = {_short(value)} is more than any site does, at most {largest:,}"
    # An epoch has one step at least.
    return refusal_of_steps(policy, recipe, recipe.training.steps_per_epoch or 1)


def refusal_of_training(policy: Policy, workspace: Workspace, data: SiteData) -> str | None:
    """Why a round asks for too many steps on this site's images, or ``None``."""
    settings = workspace.recipe.training
    unlabelled = len(data.training_indices(False)) if workspace.learns_unlabelled else 0
    labelled = len(data.training_indices(True))
    steps = steps_per_epoch(labelled, unlabelled, settings.batch_size, settings.steps_per_epoch)
    return refusal_of_steps(policy, workspace.recipe, steps)


def refusal_of_steps(policy: Policy, recipe: Recipe, steps_in_epoch: int) -> str | None:
    """Why a round has too many steps, or ``None``."""
    steps = recipe.training.local_epochs * steps_in_epoch
    if steps > policy.max_steps_per_round:
        return (
            f"a round asks for {_short(steps)} optimiser steps, the site's policy allows {policy.max_steps_per_round} "
            "(max_steps_per_round); ask for fewer training.local_epochs or training.steps_per_epoch"
        )
    return None


def refusal_of_memory(policy: Policy, recipe: Recipe, weight_bytes: int) -> str | None:
    """Why network and batches cannot fit, or ``None``; an estimate from below, of one channel and the first maps."""
    data, width = recipe.data, int(getattr(recipe.network, "width", 1))
    size = prod(data.patch or (data.size if isinstance(data.size, tuple) else ()))
    batch = max(recipe.training.batch_size * _MAPS_OF_A_STEP, recipe.evaluation.batch_size)
    needed = _COPIES_OF_WEIGHTS * weight_bytes + 4 * batch * size * width
    if needed > policy.memory_bytes:
        return (
            f"network and batches need {_gigabytes(needed)} GB at least, the site allows "
            f"{policy.memory_bytes / 1e9:.3g} (max_memory_gb); ask for a smaller network, training.batch_size, "
            "evaluation.batch_size, data.size or data.patch"
        )
    return None


def refusal_of_images(policy: Policy, number: int) -> str | None:
    """Why prepared images of so many bytes do not fit into the memory, or ``None``."""
    if number > policy.memory_bytes:
        return (
            f"prepared images need {_gigabytes(number)} GB of memory, the site allows "
            f"{policy.memory_bytes / 1e9:.3g} (max_memory_gb); ask for a smaller data.size, a coarser data.spacing, "
            "fewer data.neighbours, or a lower data.memory_limit_mb"
        )
    return None


def _short(number: float) -> str:
    """A number as text, where a server may have written thousands of digits."""
    return f"{number}" if number < 10**15 else "more than 10^15"


def _gigabytes(number: int) -> str:
    return f"{min(number, 10**24) / 1e9:.3g}"
