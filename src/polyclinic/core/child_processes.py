"""What a child process asks for so that it never outlives the process that started it."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform.startswith("linux")
_LIBC = ctypes.CDLL(None) if _LINUX else None  # loaded now: after a fork another thread may hold the loader's lock


def die_with_parent(signal_number: int) -> None:
    """Have this process get a signal when its parent ends, however that ends; on Linux only.

    To be exact: when the thread ends that started this process, so that must be one that lives as long as the parent.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal_number))
