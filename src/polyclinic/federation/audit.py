"""The site's audit log: a line for every message that left, written before it leaves.

Each line holds the SHA-256 of the line before it, so that a line cannot be changed or taken out without a trace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from polyclinic.errors import PolyclinicError

_START = "0" * 64


class AuditLog:
    """``audit.jsonl``: what left, when, for which run and round, with shapes, bytes and SHA-256 of every tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = _last_hash(path)

    def add(self, run: str, part: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> dict[str, Any]:
        """Append what is about to leave; raises if it cannot be written, and then nothing may leave."""
        listed = [_line_of(name, tensor) for name, tensor in tensors.items()]
        plain = json.dumps(about, sort_keys=True)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": run,
            "part": part,
            "round": about.get("round"),
            "kind": about.get("kind"),
            "bytes": sum(one["bytes"] for one in listed) + len(plain.encode()),
            "tensors": listed,
            "plain": dict(about),
            "before": self._last,
        }
        line = json.dumps(entry)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise PolyclinicError(
                f"{self.path}: cannot be written ({error.strerror or error}), so nothing leaves; free some space."
            ) from error
        self._last = _hash(line)
        return entry


def read_audit(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of an audit log; raises where a line was changed, inserted or taken out."""
    before = _START
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = json.loads(line)
            linked = entry["before"] == before
        except (ValueError, KeyError, TypeError):
            raise PolyclinicError(f"{path}: line {number} is damaged; keep the file and find out why.") from None
        if not linked:
            raise PolyclinicError(
                f"{path}: line {number} does not follow the line before it, so a line was changed, added or removed; "
                "keep the file and find out why."
            )
        before = _hash(line)
        yield entry


def _line_of(name: str, tensor: Tensor) -> dict[str, Any]:
    array = tensor.detach().cpu().contiguous().numpy()
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "bytes": array.nbytes,
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PolyclinicError(f"{path}: cannot be read ({error.strerror or error}); give an audit.jsonl.") from error


def _last_hash(path: Path) -> str:
    """The end of the chain. What a kill cut short was never sent, so half a line is taken off."""
    if not path.exists():
        return _START
    text = path.read_bytes()
    if not text:
        return _START
    if not text.endswith(b"\n"):
        kept = text[: text.rfind(b"\n") + 1]
        path.write_bytes(kept)
        text = kept
    lines = text.decode("utf-8").splitlines()
    return _hash(lines[-1]) if lines else _START


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
