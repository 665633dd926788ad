"""All engines by the name that a recipe uses: where sites run.

An engine is one file. Sites that this process holds are handed to an ``@engine``; where the whole run happens in other
processes, a ``@launcher`` starts them and waits for their end. A file of a recipe's ``plugins`` may register either.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.once import once
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe

OpenEngine = Callable[[Workspace, dict[str, Site], Observer], Engine]
"""From a workspace and the sites of this process to an engine."""
LaunchRun = Callable[[Recipe, tuple[str, ...], str, Path, Observer], None]
"""Run a recipe with these sites of a federation of this name, in a run folder, to its end."""
_Opens = TypeVar("_Opens", bound=OpenEngine)
_Launches = TypeVar("_Launches", bound=LaunchRun)


@dataclass(frozen=True)
class EngineEntry:
    """One engine: it either ``opens`` on sites of this process, or ``launches`` the run elsewhere."""

    name: str
    about: str
    opens: OpenEngine | None = None
    launches: LaunchRun | None = None

    @property
    def source(self) -> str:
        """The class or function that was registered, with its module."""
        registered: Any = self.opens or self.launches
        return f"{registered.__module__}.{registered.__qualname__}"


ENGINES: dict[str, EngineEntry] = {}


def engine(name: str, about: str) -> Callable[[_Opens], _Opens]:
    """Register an engine whose sites are in this process; ``about`` is its line in the documentation."""

    def register(opens: _Opens) -> _Opens:
        _add(EngineEntry(name, about, opens=opens))
        return opens

    return register


def launcher(name: str, about: str) -> Callable[[_Launches], _Launches]:
    """Register an engine that carries out the whole run in other processes."""

    def register(launches: _Launches) -> _Launches:
        _add(EngineEntry(name, about, launches=launches))
        return launches

    return register


def _add(entry: EngineEntry) -> None:
    known = ENGINES.get(entry.name)
    if known is not None and known.source != entry.source:
        raise PolyclinicError(f"Two engines are called '{entry.name}' ({known.source} and {entry.source}); rename one.")
    ENGINES[entry.name] = entry


@once
def _import_all() -> None:
    """Import every module of this folder, so that a new file needs no list to be put on."""
    import polyclinic.engines as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def find_engine(name: str) -> EngineEntry:
    """The engine of this name, or a sentence with the closest one."""
    _import_all()
    if name not in ENGINES:
        hint = suggestion(name, ENGINES) or "."
        raise PolyclinicError(f"engine.name = '{name}' is not an engine{hint} Known: {', '.join(sorted(ENGINES))}.")
    return ENGINES[name]
