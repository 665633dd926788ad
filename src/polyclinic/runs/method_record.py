"""What a run's method consisted of when the run began: another version may have other defaults under the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json, write_json

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
    return None if parts is None else {part["component"]: part["settings"] for part in parts}
