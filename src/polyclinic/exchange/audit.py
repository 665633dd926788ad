"""The site's audit log: a line for every message that left, written before it leaves.

Each line holds the SHA-256 of the line before it, so that a line cannot be changed or taken out without a trace.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.audit_head import (
    CHAIN_START,
    Head,
    HeadState,
    Signer,
    check_head,
    line_hash,
    read_head,
    write_head,
)
from polyclinic.exchange.receipts import Receipt

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class AuditLog:
    """``audit.jsonl``: what left, when, for which run and round, with shapes, bytes and SHA-256 of every tensor."""

    def __init__(self, path: Path, signer: Signer | None = None) -> None:
        self.path, self.signer = path, signer
        self._size = -1  # of the file when ``_last`` was its last line; a worker that is stopping may still append
        self._last, self._lines = CHAIN_START, 0

    @property
    def receipt(self) -> Receipt:
        """Number of lines and hash of the last one, as of the last line that was added here."""
        return Receipt(self._lines, self._last)

    def add(
        self,
        run: str,
        part: str,
        tensors: Mapping[str, Tensor],
        about: Mapping[str, Any],
        asked: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Append what is about to leave; raises if it cannot be written, and then nothing may leave.

        ``asked`` says what it answers: act, recipe and method.
        """
        listed = [_describe(name, tensor) for name, tensor in tensors.items()]
        plain = json.dumps(about, sort_keys=True)
        entry: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": run,
            "part": part,
            "round": about.get("round"),
            "kind": about.get("kind"),
            **(asked or {}),
            "bytes": sum(tensor["bytes"] for tensor in listed) + len(plain.encode()),
            "tensors": listed,
            "plain": dict(about),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b", buffering=0) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                self._append(file, entry)
        except OSError as error:
            raise PolyclinicError(
                f"{self.path}: cannot be written ({error.strerror or error}), so nothing leaves; free some space."
            ) from error
        return entry

    def _append(self, file: IO[bytes], entry: dict[str, Any]) -> None:
        size = file.seek(0, os.SEEK_END)
        if size != self._size:
            size, self._lines, self._last = self._take_up(file)
        entry |= {"line": self._lines + 1, "before": self._last}
        line = json.dumps(entry).encode()
        try:
            if file.write(line + b"\n") != len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
            write_head(self.path, self._lines + 1, line_hash(line), self.signer)
        except (OSError, PolyclinicError):
            with suppress(OSError):
                file.truncate(size)  # what did not leave is not listed; the chain goes on from the line before
            raise
        self._size, self._lines, self._last = size + len(line) + 1, self._lines + 1, line_hash(line)

    def _take_up(self, file: IO[bytes]) -> tuple[int, int, str]:
        """Size, number of lines and end of the chain of a log that goes on; raises if it does not end as its head says.

        What a kill cut short was never sent, so half a line is taken off.
        """
        file.seek(0)
        *lines, half = file.read().split(b"\n")
        size = file.tell() - len(half)
        if half:
            file.truncate(size)
        last = line_hash(lines[-1]) if lines else CHAIN_START
        if check_head(self.path, lines, read_head(self.path)) == "one line more":
            write_head(self.path, len(lines), last, self.signer)
        return size, len(lines), last


def read_audit(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of an audit log; raises where a line was changed, inserted or taken out, at the end too."""
    before, lines = CHAIN_START, _lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            linked = entry["before"] == before and entry.get("line", number) == number
        except (ValueError, KeyError, TypeError):
            raise PolyclinicError(f"{path}: line {number} is damaged; keep the file and find out why.") from None
        if not linked:
            raise PolyclinicError(
                f"{path}: line {number} does not follow the line before it, so a line was changed, added or removed; "
                "keep the file and find out why."
            )
        before = line_hash(line)
        yield entry
    check_head(path, lines, read_head(path))


def end_of_chain(path: Path) -> str:
    """SHA-256 of the last line, which no later line protects yet."""
    lines = _lines(path)
    return line_hash(lines[-1]) if lines else CHAIN_START


def line_hashes(path: Path) -> list[str]:
    """SHA-256 of every line."""
    return [line_hash(line) for line in _lines(path)]


def head_of(path: Path) -> tuple[Head | None, HeadState]:
    """The head of a log, and how it fits."""
    head = read_head(path)
    return head, check_head(path, _lines(path), head)


def _describe(name: str, tensor: Tensor) -> dict[str, Any]:
    array = tensor.detach().cpu().contiguous().numpy()
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "bytes": array.nbytes,
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def _lines(path: Path) -> list[bytes]:
    """Whole lines: what a kill cut short was never sent."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise PolyclinicError(f"{path}: cannot be read ({error.strerror or error}); give an audit.jsonl.") from error
