"""Imports of large packages without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import inside of this block where a program starts: PyTorch and what follows it then take a sixth less time.

    An import makes hundreds of thousands of objects that stay. The collector would look through all of them again and
    again while they become more, and finds nothing; afterwards it leaves them out for good (``gc.freeze``), which also
    spares their pages a copy in processes that are forked later. Where PyTorch is there already nothing happens.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
