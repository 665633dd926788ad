"""Files written beside the work that made them, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """One file at a time beside the training; after ``wait``, or the end of the block, everything is on disk."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Wait for the file before, so that memory holds one at most, then start this one."""
        self.wait()
        self._pool = self._pool or ThreadPoolExecutor(1)
        self._pending = self._pool.submit(work)

    def wait(self) -> None:
        """Return when nothing is left to write; raises what the writing has raised, once."""
        if self._pending is None:
            return
        try:
            self._pending.result()
        finally:
            if self._pending.done():  # else somebody has interrupted the waiting, and may wait again
                self._pending = None

    def close(self) -> None:
        """Wait, and end the thread; a later ``submit`` starts another."""
        try:
            self.wait()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
