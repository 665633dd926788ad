"""The memory of this machine."""

from __future__ import annotations

import os


def physical_memory() -> int:
    """Bytes of memory that the machine has; what a container may use of it is not looked at."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
