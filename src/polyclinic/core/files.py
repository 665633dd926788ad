"""Atomic writes, private files, JSON, and the cache folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError

_LEAST_SPACE = 10**5  # bytes; with less nothing can be written


@contextmanager
def atomic_write(path: Path, sync: bool = True) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it over ``path`` when the block ends well.

    The content is then on the disk, unless ``sync`` says that the file was there already or can be made again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _cannot_be_written(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Have a folder there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_written(path, error) from error


def _cannot_be_written(path: Path, error: OSError) -> PolyclinicError:
    advice = "free some space" if error.errno in (None, errno.ENOSPC, errno.EDQUOT) else "choose another folder"
    return PolyclinicError(f"{path}: cannot be written ({error.strerror or error}); {advice}.")


def write_text(path: Path, text: str) -> None:
    """Write text atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str, advice: str = "free some space") -> None:
    """Append text, whole or not at all: a disk that is full leaves no half of a line."""
    data = memoryview(text.encode("utf-8"))
    try:
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise
    except OSError as error:
        raise PolyclinicError(f"{path}: cannot be written ({error.strerror or error}); {advice}.") from error


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can look into; one that is there stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, data: bytes, sync: bool = True) -> None:
    """Write a secret atomically; from its first byte only its owner can read it, whatever the umask.

    ``sync`` as in ``atomic_write``.
    """
    with atomic_write(path, sync) as temporary:
        temporary.unlink(missing_ok=True)  # of a killed process that had this number
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk: a rename is else lost with the power, file and all."""
    if os.name != "posix":
        return
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        raise PolyclinicError(f"{folder}: cannot be written ({error.strerror or error}); free some space.") from error


def require_space(folder: Path) -> None:
    """Raise if the disk of a folder is full, so that a process which ended there could not say why."""
    if shutil.disk_usage(folder).free < _LEAST_SPACE:
        raise PolyclinicError(f"{folder}: no space is left on its disk; free some space and go on with --resume.")


def read_bytes(path: Path) -> bytes:
    """Read a small file that the user named; a missing one gets a sentence."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolyclinicError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write plain data atomically, readable by a person."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read plain data; a damaged file gets a sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolyclinicError(f"{path}: cannot be read as JSON ({error}); restore it or start a new run.") from error


def cache_folder() -> Path:
    """The folder for what can be made again: ``$POLYCLINIC_CACHE``, else the user's cache folder."""
    named = os.environ.get("POLYCLINIC_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyclinic"
