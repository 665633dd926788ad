"""Methods and components as plain rows: the source of every list of them, on the screen and in the documentation."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from polyclinic.components.registry import components, find_component
from polyclinic.methods.registry import Method, Part, methods


def method_rows() -> list[dict[str, Any]]:
    """One row a method."""
    return [
        {
            "method": method.name,
            "summary": method.summary,
            "paper": method.paper,
            "year": method.year,
            "pooled": method.pooled,
            "expression": expression_of(method),
            "components": [{"component": p.component, "settings": p.settings} for p in method.parts],
        }
        for method in methods().values()
    ]


def component_rows() -> list[dict[str, Any]]:
    """One row a component."""
    return [
        {
            "component": cls.name,
            "level": cls.level,
            "summary": (cls.__doc__ or "").strip().splitlines()[0],
            "paper": cls.paper,
            "equations": list(cls.equations),
            "settings": setting_rows(cls.Settings),
        }
        for cls in components().values()
    ]


def setting_rows(settings: type[BaseModel]) -> list[dict[str, Any]]:
    """One row a setting, with its default and type."""
    return [
        {
            "name": name,
            "default": None if field.default is PydanticUndefined else field.default,
            "type": str(field.annotation).replace("typing.", "") if not isinstance(field.annotation, type)
            else field.annotation.__name__,
            "help": field.description or "",
        }
        for name, field in settings.model_fields.items()
    ]  # fmt: skip


def expression_of(method: Method) -> str:
    """The method's components as text, with the settings that differ from their defaults."""
    return " + ".join(_part(part) for part in method.parts)


def _part(part: Part) -> str:
    defaults = {row["name"]: row["default"] for row in setting_rows(find_component(part.component).Settings)}
    settings = ", ".join(f"{key}={value}" for key, value in part.settings.items() if value != defaults[key])
    return f"{part.component}({settings})" if settings else part.component
