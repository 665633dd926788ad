"""What a process asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path, PurePosixPath

import torch

from polyclinic.core.wording import counted

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 2**30


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: at least 1.

    Those that it is bound to (``taskset``, a batch system), and no more than the CPU time that its control group may
    use (a container's ``--cpus``), rounded down, or than ``$POLYCLINIC_CORES`` says. ``root`` is where ``/proc`` and
    ``/sys`` are.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("POLYCLINIC_CORES", "")
    limits = [int(limit)] if limit.isdecimal() else []
    return max(1, min([bound, *map(int, _cpu_quotas(root)), *limits]))


def _cpu_quotas(root: Path) -> list[float]:
    """Cores' worth of time that this process's control group and the groups around it may use."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not Linux
        return []
    quotas = []
    for controllers, place in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = PurePosixPath(place.lstrip("/"))
        for folder in (group, *group.parents):
            quotas.append(_quota_of(top / folder, version=1 if controllers else 2))
    return [quota for quota in quotas if quota is not None]


def _quota_of(group: Path, version: int) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
    try:
        quota, period = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # no such file in this group, or "max"
        return None


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


def device_problem(name: str) -> str:
    """Why PyTorch cannot compute on a device, empty where it can. A CUDA device is counted and not woken up."""
    try:
        device = torch.device(name)
        if device.type == "cuda":
            count = torch.cuda.device_count()
            return "" if (device.index or 0) < count else f"this machine has {counted(count, 'usable CUDA device')}"
        float(torch.zeros(1, device=device).sum())  # a device that holds no numbers cannot train
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return str(error)
    return ""


def has_mps() -> bool:
    """Whether this machine has one of Apple's GPUs."""
    return torch.backends.mps.is_available()


def visible_gpus() -> tuple[str, ...]:
    """The CUDA devices that this process may use, each as ``CUDA_VISIBLE_DEVICES`` names it; no device is woken up."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in named.split(",")] if named else [str(number) for number in range(count)]
    return tuple(names[:count])
