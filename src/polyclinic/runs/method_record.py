"""What a run's method consisted of when the run began: another version may have other defaults under the same name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json

if TYPE_CHECKING:
    from polyclinic.methods.registry import Method

FILE = "method.json"


def write_method(folder: Path, expression: str) -> None:
    """Keep the components of a run's method with all of their settings."""
    write_json(folder / FILE, _parts(expression))


def method_changes(folder: Path, changed: list[str], expression: str, before: str = "") -> list[str]:
    """Keys in which recipes differ, with what is known of the run's method instead of how the two spell theirs.

    A setting that is another one now is named with what it was, such as ``cse.probability (was 1.0)``, also where the
    method has the same name and a default has changed; another spelling of the same method is no change. A setting that
    did not exist then is not compared. A run from before the record has it in its summary, once that is there; where
    neither is, nothing is known. ``before`` is how the run spelled its method: what pools all images, or reads all
    labels, is another method with the same components.
    """
    recorded = _recorded(folder)
    if recorded is None:
        return changed
    now = {part["component"]: part["settings"] for part in _parts(expression)}
    others = [key for key in changed if key != "method"]
    if set(recorded) != set(now) or (before and _reads(before) != _reads(expression)):
        return [*others, "method"]
    return others + [
        f"{component}.{key} (was {value})"
        for component, settings in recorded.items()
        for key, value in settings.items()
        if key not in now[component] or now[component][key] != value
    ]


def recorded_method(folder: Path, expression: str) -> Method:
    """The method that a run was trained with, for what is done with its model afterwards.

    Settings that change what a network computes, and none of its weights, would otherwise be today's defaults.
    """
    from polyclinic.methods.expression import parse_method
    from polyclinic.methods.registry import Part, validated

    method, recorded = parse_method(expression), _recorded(folder)
    if recorded is None:
        return method
    parts = tuple(Part(component, settings) for component, settings in recorded.items())
    try:
        for part in parts:
            validated(part)
    except PolyclinicError as error:
        raise PolyclinicError(
            f"{folder / FILE}: {error} The run was made by another version, which versions.json names; use that one."
        ) from error
    return replace(method, parts=parts)


def _parts(expression: str) -> list[dict[str, Any]]:
    # Here, because programs that only watch a run's folder need no PyTorch.
    from polyclinic.methods.expression import parse_method, settled_parts

    return settled_parts(parse_method(expression))


def _reads(expression: str) -> tuple[bool, bool]:
    from polyclinic.methods.expression import parse_method

    method = parse_method(expression)
    return method.pooled, method.all_labels


def _recorded(folder: Path) -> dict[str, dict[str, Any]] | None:
    if (folder / FILE).exists():
        parts = read_json(folder / FILE)
    elif (folder / "summary.json").exists():
        parts = read_json(folder / "summary.json").get("components")
    else:
        parts = None
    try:
        return None if parts is None else {str(part["component"]): dict(part["settings"]) for part in parts}
    except (TypeError, KeyError, ValueError) as error:
        raise PolyclinicError(
            f"{folder / FILE}: expected a list of components with their settings; take the file from a backup of the "
            "run, or remove it to use today's defaults."
        ) from error
