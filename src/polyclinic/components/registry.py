"""All components by the name that a method expression uses."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, TypeVar

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.once import once

if TYPE_CHECKING:
    from polyclinic.components.base import Component

_COMPONENTS: dict[str, type[Component]] = {}
_Class = TypeVar("_Class", bound="type[Component]")


def component(cls: _Class) -> _Class:
    """Class decorator: make a component known under its ``name``."""
    known = _COMPONENTS.get(cls.name)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise PolyclinicError(f"Two components are called '{cls.name}' ({known!r} and {cls!r}); rename one of them.")
    _COMPONENTS[cls.name] = cls
    return cls


@once
def _import_all() -> None:
    """Import every module below ``polyclinic.components``, so that a new file needs no list to be put on."""
    import polyclinic.components as package

    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def components() -> dict[str, type[Component]]:
    """All components by name."""
    _import_all()
    return dict(sorted(_COMPONENTS.items()))


def find_component(name: str) -> type[Component]:
    """The component of this name, or a sentence with the closest one."""
    known = components()
    if name not in known:
        raise PolyclinicError(
            f"'{name}' is not a component{suggestion(name, known) or '.'} `polyclinic methods` lists all of them."
        )
    return known[name]
