"""polyclinic: many clinics, one segmentation model, no image ever leaves a clinic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyclinic.errors import PolyclinicError
    from polyclinic.recipe import Recipe
    from polyclinic.runs.execute import run
    from polyclinic.runs.grid import compare
    from polyclinic.runs.study import study

__version__ = "0.1.0"
__all__ = ["PolyclinicError", "Recipe", "__version__", "compare", "run", "study"]

_HOMES = {
    "run": "polyclinic.runs.execute",
    "compare": "polyclinic.runs.grid",
    "study": "polyclinic.runs.study",
    "Recipe": "polyclinic.recipe",
    "PolyclinicError": "polyclinic.errors",
}


def __dir__() -> list[str]:
    """Completion shows the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that ``polyclinic --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'polyclinic' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
