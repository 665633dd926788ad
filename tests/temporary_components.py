"""Components that exist for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyclinic.components import registry
from polyclinic.components.base import Component


@contextmanager
def known(cls: type[Component]) -> Iterator[None]:
    """Make a component known for one test."""
    registry.components()
    registry._COMPONENTS[cls.name] = cls
    try:
        yield
    finally:
        del registry._COMPONENTS[cls.name]
