"""One codec for the names that tensors have on a wire and on a disk: ``GROUP/NAME`` or ``GROUP/OWNER/NAME``.

A *group* is what a tensor belongs to (``weights``, ``optimizer``); in some groups tensors have an *owner*, which is the
component that shares or remembers them (``shared/cse/mean``). Needs no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

Blobs = dict[str, bytes]
"""Named tensors by group, ``weights`` or ``shared/COMPONENT``, each as the bytes of a safetensors file."""

_Value = TypeVar("_Value")


def join_names(groups: Mapping[str, Mapping[str, _Value]]) -> dict[str, _Value]:
    """Flatten ``{"weights": {"head.bias": x}}`` to ``{"weights/head.bias": x}``; a group may hold an owner's slash.

    >>> join_names({"weights": {"a": 1}, "shared/cse": {"mean": 2}})
    {'weights/a': 1, 'shared/cse/mean': 2}
    """
    return {f"{group}/{name}": value for group, held in groups.items() for name, value in held.items()}


def split_names(flat: Mapping[str, _Value], owned: Collection[str] = ()) -> dict[str, dict[str, _Value]]:
    """Undo ``join_names``; ``owned`` are the groups whose tensors have an owner.

    >>> split_names({"weights/a": 1, "shared/cse/mean": 2}, owned=("shared",))
    {'weights': {'a': 1}, 'shared/cse': {'mean': 2}}
    """
    groups: dict[str, dict[str, _Value]] = {}
    for full_name, value in flat.items():
        group, _, name = full_name.partition("/")
        if group in owned:
            owner, _, name = name.partition("/")
            group = f"{group}/{owner}"
        groups.setdefault(group, {})[name] = value
    return groups


def with_owners(group: str, by_owner: Mapping[str, Mapping[str, _Value]]) -> dict[str, Mapping[str, _Value]]:
    """The tensors of each owner as groups of their own: ``{"cse": ...}`` to ``{"shared/cse": ...}``."""
    return {f"{group}/{owner}": held for owner, held in by_owner.items()}


def owners_of(group: str, groups: Mapping[str, dict[str, _Value]]) -> dict[str, dict[str, _Value]]:
    """The tensors of each owner in a group: undoes ``with_owners``."""
    prefix = f"{group}/"
    return {name.removeprefix(prefix): held for name, held in groups.items() if name.startswith(prefix)}
