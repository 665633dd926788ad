"""A recipe with some of its values changed by a program, by dotted key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from polyclinic.core.errors import PolyclinicError, suggestion

_Settings = TypeVar("_Settings", bound=BaseModel)


def with_changes(settings: _Settings, changes: Mapping[str, Any]) -> _Settings:
    """A copy of a recipe, or of one of its sections, with ``{"training.rounds": 3, "method": "fedbn"}``.

    Values are taken as they are, without another validation; a key that does not exist is an error.
    """
    return _changed(settings, changes, "")


def _changed(settings: _Settings, changes: Mapping[str, Any], prefix: str) -> _Settings:
    known = type(settings).model_fields
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        name, dot, rest = key.partition(".")
        if name not in known:
            hint = suggestion(name, known) or f"; keys are {', '.join(known)}."
            raise PolyclinicError(f"'{prefix}{name}' is not a key of the recipe{hint}")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    for name, section_changes in inner.items():
        section = values.get(name, getattr(settings, name))
        if not isinstance(section, BaseModel):
            raise PolyclinicError(f"'{prefix}{name}' is a value and holds no key '{next(iter(section_changes))}'.")
        values[name] = _changed(section, section_changes, f"{prefix}{name}.")
    return settings.model_copy(update=values)
