"""The memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from polyclinic.core.errors import PolyclinicError

# What PyTorch says of a tensor that is larger than the memory, or than any number of bytes; few errors have a class.
_ALLOCATOR = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed",
              "Overflow when unpacking long")  # fmt: skip


@contextmanager
def enough_memory(sentence: str) -> Iterator[None]:
    """A block in which an allocation that fails is an error of the user's, in this sentence."""
    try:
        yield
    except MemoryError as error:
        raise PolyclinicError(sentence) from error
    except (RuntimeError, TypeError) as error:
        if not any(words in str(error) for words in _ALLOCATOR):
            raise
        raise PolyclinicError(sentence) from error


def physical_memory() -> int:
    """Bytes of memory that the machine has; what a container may use of it is not looked at."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process and its children may still take without the system swapping or killing.

    What the kernel calls available, and no more than the process's control group (a container's ``--memory``) leaves.
    Elsewhere than on Linux, half of the machine's memory. ``root`` is where ``/proc`` and ``/sys`` are.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return physical_memory() // 2
    return max(0, min([available, *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> list[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    left = []
    for line in lines:
        if not line.startswith("0::"):  # version 2 alone: version 1 counts cached files as used
            continue
        group = PurePosixPath(line.removeprefix("0::").lstrip("/"))
        for folder in (group, *group.parents):
            top = root / "sys/fs/cgroup" / folder
            try:
                limit, used = (int((top / name).read_text()) for name in ("memory.max", "memory.current"))
                cached = _cached_files(top)
            except (OSError, ValueError):  # no such file in this group, or "max"
                continue
            left.append(limit - used + cached)
    return left


def _cached_files(group: Path) -> int:
    """Bytes of files that the kernel would let go of first."""
    lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
