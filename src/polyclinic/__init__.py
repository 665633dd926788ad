"""polyclinic: many clinics, one segmentation model, no image ever leaves a clinic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyclinic.core.version import VERSION

if TYPE_CHECKING:
    from polyclinic.api import ablate, compare, predict, run, study
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.recipe import Recipe


__version__ = VERSION
__all__ = ["PolyclinicError", "Recipe", "__version__", "ablate", "compare", "predict", "run", "study"]

_HOMES = {
    "run": "polyclinic.api",
    "compare": "polyclinic.api",
    "ablate": "polyclinic.api",
    "study": "polyclinic.api",
    "predict": "polyclinic.api",
    "Recipe": "polyclinic.recipe",
    "PolyclinicError": "polyclinic.core.errors",
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
