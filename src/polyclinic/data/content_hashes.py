"""The SHA-256 of files' contents, remembered so that a second start need not read them again.

What is remembered of a file is its size, times and inode, as git's index does it. A file that changed less than two
seconds before it was read is read again next time: it may change once more within one tick of the file system's clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import private_folder
from polyclinic.core.machine import available_cores

_COARSEST_CLOCK = 2 * 10**9  # nanoseconds: the times of files on FAT
Stamp = list[int]
"""Device, inode, size, and the times of change of content and of inode."""


def content_hashes(paths: Iterable[Path], memory: Path | None = None) -> dict[Path, str]:
    """SHA-256 of each file's content; ``memory`` is the private folder where they are remembered, if there is one."""
    by_folder: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        by_folder.setdefault(path.parent, []).append(path)
    hashes: dict[Path, str] = {}
    for folder, files in by_folder.items():
        hashes |= _hashes_of_folder(folder, files, memory)
    return hashes


def _hashes_of_folder(folder: Path, files: list[Path], memory: Path | None) -> dict[Path, str]:
    notes = None if memory is None else memory / f"{_sha256(os.path.realpath(folder).encode())[:32]}.json"
    known = _remembered(notes)
    stamps = {path: _stamp(path) for path in files}
    hashes = {path: known[path.name][1] for path in files if known.get(path.name, (None, ""))[0] == stamps[path]}
    unread = [path for path in files if path not in hashes]
    if not unread:
        return hashes
    now = time.time_ns()
    with ThreadPoolExecutor(min(available_cores(), len(unread))) as threads:
        hashes |= zip(unread, threads.map(_content_hash, unread), strict=True)
    for path in unread:
        stamp = stamps[path]
        if max(stamp[-2:]) < now - _COARSEST_CLOCK and _stamp(path) == stamp:
            known[path.name] = (stamp, hashes[path])
        else:
            known.pop(path.name, None)
    if notes is not None:
        _remember(notes, {name: note for name, note in known.items() if (folder / name).exists()})
    return {path: hashes[path] for path in files}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _stamp(path: Path) -> Stamp:
    try:
        about = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _content_hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> PolyclinicError:
    return PolyclinicError(f"{path}: cannot be read ({error.strerror}); restore the file or open the federation again.")


def _remembered(notes: Path | None) -> dict[str, tuple[Stamp, str]]:
    if notes is None:
        return {}
    try:
        return {name: (list(stamp), str(sha256)) for name, (stamp, sha256) in json.loads(notes.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or cut short with the power
        return {}


def _remember(notes: Path, known: dict[str, tuple[Stamp, str]]) -> None:
    """Best effort, and without waiting for the disk: what is lost is computed again."""
    part = notes.with_name(f".{notes.name}.{os.getpid()}.part")
    with suppress(OSError):
        private_folder(notes.parent.parent)
        private_folder(notes.parent)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(known, file)
        part.replace(notes)
