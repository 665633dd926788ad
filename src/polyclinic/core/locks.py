"""Locks between processes: on a folder, and on single files. A lock ends with the process, however that ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyclinic.core.errors import PolyclinicError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def shared_lock(descriptor: int) -> None:
    """Take a lock on an open file that others may share; it ends when all copies of the descriptor are closed."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def try_exclusive_lock(descriptor: int) -> bool:
    """Take a lock on an open file if nobody else has one, without waiting."""
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def exclusive_lock(
    folder: Path, taken: str = "another process is working here; wait for it.", patience: float = 0
) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with the process, however it ends.

    ``patience`` is the time to wait for a process that is about to end, in seconds.
    """
    ends = time.monotonic() + patience
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise PolyclinicError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another folder with --out."
        ) from error
    with file:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= ends:
                    raise PolyclinicError(f"{folder}: {taken}") from error
            time.sleep(0.2)
        yield
