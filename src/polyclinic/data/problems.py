"""One fault of a federation's files, as ``polyclinic data check`` lists it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from polyclinic.core.errors import PolyclinicError

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One fault. ``site`` and ``file`` (relative to the federation's folder) are empty where it has none."""

    severity: Severity
    site: str
    file: str
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def problem_of(error: PolyclinicError, root: Path, site: str = "") -> Problem:
    """Split an error's sentence into the file that it starts with and the rest."""
    path, colon, rest = str(error).partition(": ")
    if colon and Path(path).is_relative_to(root):
        return Problem("error", site, relative(Path(path), root), rest.replace(f"{root}{os.sep}", ""))
    return Problem("error", site, "", str(error))


def relative(path: Path, root: Path) -> str:
    """The path below the federation's folder, or the folder's own name."""
    return path.name if path == root else path.relative_to(root).as_posix()
