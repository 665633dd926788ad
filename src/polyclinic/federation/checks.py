"""Every update is checked before it touches the global model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyclinic.components.base import Shared
from polyclinic.errors import suggestion
from polyclinic.federation.messages import Update


def problem_with(
    update: Update, expected: Mapping[str, Tensor], declared: Mapping[str, tuple[Shared, ...]], round_number: int
) -> str | None:
    """Why an update must be refused, in one sentence, or ``None``.

    ``expected`` are the exchanged global weights, ``declared`` what each component may share.
    """
    if update.round != round_number:
        return f"it answers round {update.round}, not round {round_number}"
    if update.samples < 0 or update.steps < 0:
        return f"it counts {update.samples} samples and {update.steps} steps"
    return _weights_problem(update.weights, expected) or _shared_problem(update.shared, declared)


def _weights_problem(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    missing, unknown = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing:
        return f"{len(missing)} weights are missing, '{min(missing)}' first"
    if unknown:
        first = min(unknown)
        return f"'{first}' is not a weight of this model{suggestion(first, expected)}"
    for name, tensor in weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return (
                f"'{name}' is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"expected {wanted.dtype} of shape {tuple(wanted.shape)}"
            )
        if not is_finite(tensor):
            return f"'{name}' holds NaN or infinite values (the training diverged; try a lower learning rate)"
    return None


def _shared_problem(
    shared: Mapping[str, Mapping[str, Tensor]], declared: Mapping[str, tuple[Shared, ...]]
) -> str | None:
    for component in shared.keys() | declared.keys():
        wanted = {one.name: one for one in declared.get(component, ())}
        given = shared.get(component, {})
        if wanted.keys() != given.keys():
            odd = min(wanted.keys() ^ given.keys())
            side = "declares but does not share" if odd in wanted else "shares without declaring"
            return f"component {component} {side} '{odd}'"
        for name, tensor in given.items():
            if not wanted[name].accepts(tensor):
                return (
                    f"component {component} shares '{name}' as {tensor.dtype} of shape {tuple(tensor.shape)}, "
                    f"declared is {wanted[name].dtype} of shape {wanted[name].shape}"
                )
            if wanted[name].finite and not is_finite(tensor):
                return f"component {component} shares NaN or infinite values in '{name}'"
    return None


def is_finite(tensor: Tensor) -> bool:
    """A sum is finite only if every value is, and takes a tenth of the time; only an overflow needs the long way."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())
