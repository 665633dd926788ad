"""Tables that are made of finished runs once, for their owner alone: they come with pictures of patients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import private_folder, read_json, write_private

VERSION = 1


def read_made(path: Path) -> dict[str, Any]:
    """A table that was made before; nothing if there is none, or one that cannot be used."""
    try:
        table = read_json(path)
    except PolyclinicError:
        return {}
    return table if isinstance(table, dict) and table.get("version") == VERSION else {}


def write_made(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table for its owner alone."""
    try:
        private_folder(path.parent)
    except OSError as error:
        raise PolyclinicError(f"{path.parent}: cannot be made ({error.strerror}); pictures go there.") from error
    write_private(path, (json.dumps(table, indent=1) + "\n").encode())
