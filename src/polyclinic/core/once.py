"""Functions that do their work at the first call only, however many threads call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock


def once(function: Callable[[], None]) -> Callable[[], None]:
    """Do nothing after the first call; whoever calls meanwhile waits for it.

    ``functools.cache`` would let a second thread do the work beside the first. Where that is imports, two threads that
    meet in a circle of modules get one that is half done.
    """
    lock, done = RLock(), False

    @wraps(function)
    def guarded() -> None:
        nonlocal done
        with lock:
            if not done:
                function()
                done = True

    return guarded
