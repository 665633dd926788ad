"""The header of a safetensors file, looked at before the file is parsed: it may come from a hostile sender.

A file begins with the length of its header in 8 bytes, then JSON with an entry for each tensor. Of two entries with one
name a reader takes either, so two readers may see two models; and 10^5 empty tensors in a few megabytes take seconds.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

LARGEST_HEADER = 10**8
"""Bytes: the limit of the format itself."""


def require_header(file: BinaryIO, most_names: int | None = None, most_bytes: int = LARGEST_HEADER) -> None:
    """Raise ``ValueError`` with a reason if a file's header is too large, or has a name twice or too many names."""
    start = file.read(8)
    if len(start) < 8:
        raise ValueError("it ends before its header")
    (size,) = struct.unpack("<Q", start)
    if size > most_bytes:
        raise ValueError(f"its header has {size} bytes, at most {most_bytes} are read")
    header = file.read(size)
    if len(header) < size:
        raise ValueError("it ends within its header")
    try:
        entries = json.loads(header, object_pairs_hook=_without_duplicates)
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if most_names is not None and isinstance(entries, dict) and len(entries) > most_names:
        raise ValueError(f"it has {len(entries)} tensors, at most {most_names} are read")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"its header has '{twice[:100]}' twice")
    return table
