"""Validation of what a server sends beside the weights: a site takes what its components declare, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from polyclinic.core.wording import printable_line
from polyclinic.exchange.checks import shared_problem
from polyclinic.exchange.declarations import Shared

_EACH = "/*"


def broadcast_problem(
    shared: Mapping[str, Mapping[str, Tensor]], returned: Mapping[str, tuple[Shared, ...]]
) -> str | None:
    """Why a site must refuse what components are given, in one sentence, or ``None``; a component may get nothing."""
    for component, tensors in shared.items():
        if not tensors:
            continue
        declared = returned.get(component, ())
        if not declared:
            return f"component {printable_line(component)} takes nothing from the server"
        for part, wanted in _parts(tensors, declared):
            problem = shared_problem({component: part}, {component: wanted})
            if problem is not None:
                return printable_line(problem)
    return None


def _parts(
    tensors: Mapping[str, Tensor], declared: tuple[Shared, ...]
) -> list[tuple[dict[str, Tensor], tuple[Shared, ...]]]:
    """The tensors of each site together, and those of no site, each with their declarations: sizes agree inside one."""
    each = {one.name.removesuffix(_EACH): one for one in declared if one.name.endswith(_EACH)}
    plain = tuple(one for one in declared if not one.name.endswith(_EACH))
    alone: dict[str, Tensor] = {}
    owned: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        stem, _, owner = name.partition("/")
        if stem in each and owner.isdecimal():
            owned[owner][name] = tensor
        else:
            alone[name] = tensor
    parts = [
        (found, tuple(replace(one, name=f"{stem}/{owner}") for stem, one in each.items()))
        for owner, found in owned.items()
    ]
    return [*parts, *([(alone, plain)] if alone or plain else [])]
