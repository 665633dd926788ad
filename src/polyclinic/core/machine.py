"""What a process asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 2**30


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep what a training step frees for the next step, instead of giving it back each time.

    A step on the CPU frees and takes tens of megabytes of activations; by default glibc returns them to the system,
    which then hands out the same pages anew, zeroed: ten thousand page faults a step for a batch of 6x3x64x64 and a
    U-Net of 2 M weights, against none with this. Elsewhere than on Linux nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        return bool(library.mallopt(_M_MMAP_THRESHOLD, _LARGE) and library.mallopt(_M_TRIM_THRESHOLD, _LARGE))
    except (OSError, AttributeError):  # a C library without mallopt, such as musl
        return False


def widest_float(device: torch.device) -> torch.dtype:
    """Doubles for sums of many numbers, but on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def prepare_process(threads: int) -> None:
    """One deliberate number of threads, memory that stays, and cuDNN's repeatable algorithms."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    keep_freed_memory()
