"""Methods are data: a named list of components with the paper's defaults."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyclinic.components.base import Component, Context
from polyclinic.components.registry import components, find_component
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.once import once
from polyclinic.core.wording import first_finding, printable_line


@dataclass(frozen=True)
class Part:
    """A component by name, with the settings that differ from its own defaults."""

    component: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A named list of components. ``pooled`` puts all sites' data in one place: a reference, not a federation."""

    name: str
    parts: tuple[Part, ...]
    summary: str = ""
    paper: str = ""
    year: int | None = None
    pooled: bool = False
    all_labels: bool = False
    """Reads every label, whatever ``data.labelled`` says: a reference for methods that do not."""
    extends: str | None = None
    """The method, or the expression, that this one becomes when every strength is zero."""
    instead: dict[str, str] = field(default_factory=dict)
    """What takes the place of a component in the paper's ablation, as a term of an expression; by default nothing."""

    def build(self, context: Context) -> list[Component]:
        """Fresh components with validated settings."""
        return [_build(part, context) for part in self.parts]

    @property
    def aggregator(self) -> str:
        """Name of the one component that aggregates."""
        return next(part.component for part in self.parts if find_component(part.component).aggregates)


_METHODS: dict[str, Method] = {}
_MODULES: dict[str, str] = {}  # by method: who registered it, as a method is data and has no module of its own
_DEFAULT_AGGREGATOR = Part("weighted_mean")


def part(component: str, **settings: Any) -> Part:
    """A component by name, with settings."""
    return Part(component, settings)


def register(method: Method) -> Method:
    """Make a method known under its name."""
    method = with_parts(method, method.parts)
    if method.name in _METHODS and _METHODS[method.name] != method:
        raise PolyclinicError(f"Two methods are called '{method.name}'; rename one of them.")
    _METHODS[method.name] = method
    _MODULES[method.name] = sys._getframe(1).f_globals.get("__name__", "__main__")
    return method


def module_of(name: str) -> str:
    """The module that registered a method."""
    return _MODULES.get(find_method(name).name, __name__)


def with_parts(method: Method, parts: Iterable[Part]) -> Method:
    """The method with other components; the last one that aggregates does it, the weighted mean if there is none."""
    parts = list(parts)
    aggregating = [p for p in parts if find_component(p.component).aggregates]
    kept = [p for p in parts if p not in aggregating]
    return replace(method, parts=(aggregating[-1] if aggregating else _DEFAULT_AGGREGATOR, *kept))


@once
def _import_all() -> None:
    import polyclinic.methods as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def methods() -> dict[str, Method]:
    """All methods by name."""
    _import_all()
    return dict(sorted(_METHODS.items()))


def find_method(name: str) -> Method:
    """The method of this name, or a sentence with the closest one."""
    known = methods()
    if name not in known and name in components():
        raise PolyclinicError(f"'{name}' is a component, not a method; add it to one, such as fedavg+{name}.")
    if name not in known:
        raise PolyclinicError(f"'{name}' is not a method{suggestion(name, known) or '.'} Known: {', '.join(known)}.")
    return known[name]


def load_plugins(plugins: Iterable[str], allowed: bool = True) -> None:
    """Import the user's own files or modules, which register components and methods.

    A recipe that is only read may be a stranger's. Unless its plugins are ``allowed`` to run, nothing is imported, and
    one that this process has not imported before is an error.
    """
    if not allowed:
        _require_imported(plugins)
        return
    for plugin in plugins:
        path = Path(plugin)
        try:
            if path.suffix != ".py":
                importlib.import_module(plugin)
                continue
            name = _module_name(path)
            if name in sys.modules:
                continue
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise ImportError("there is no such file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        except PolyclinicError:
            raise
        except Exception as error:
            raise PolyclinicError(
                f"plugins: '{plugin}' cannot be imported ({type(error).__name__}: {error}); "
                "mend it, or give another .py file or installed module."
            ) from error


def _module_name(path: Path) -> str:
    """What the module of a plugin file is called."""
    return f"polyclinic_plugin_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"


def _require_imported(plugins: Iterable[str]) -> None:
    new = [plugin for plugin in plugins if not _is_imported(plugin)]
    if new:
        raise PolyclinicError(
            f"the recipe names plugins, programs with your rights: {printable_line(', '.join(new))}; look at them, and "
            "if they may run here say so with --plugins (plugins=True in Python)."
        )


def _is_imported(plugin: str) -> bool:
    """Whether this process has run the file or module already: as a plugin, or in a program of the user's own."""
    path = Path(plugin)
    if path.suffix != ".py":
        return plugin in sys.modules
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    same_name = (Path(file) for file in files if isinstance(file, str) and Path(file).name == path.name)
    return _module_name(path) in sys.modules or any(file.resolve() == path.resolve() for file in same_name)


def _build(wanted: Part, context: Context) -> Component:
    cls = find_component(wanted.component)
    return cls(validated(wanted), context)


def validated(wanted: Part) -> Any:
    """The component's settings, checked; a wrong one gets a sentence."""
    from pydantic import ValidationError

    cls = find_component(wanted.component)
    known = cls.Settings.model_fields
    for key in wanted.settings:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise PolyclinicError(
                f"'{key}' is not a setting of {cls.name}{suggestion(key, known) or '.'} Its settings: {listed}."
            )
    try:
        return cls.Settings(**wanted.settings)
    except ValidationError as error:
        finding = first_finding(error)
        if not finding.place:
            raise PolyclinicError(f"{cls.name}: {finding.words}.") from error
        key = str(finding.place[0])
        what = f"{finding.value!r} is not possible: {finding.words}" if finding.inside else finding.words
        raise PolyclinicError(f"{cls.name}({key}={wanted.settings.get(key)!r}): {what}.") from error
