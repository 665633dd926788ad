"""Starting Flower's programs with settings that neither call out nor wait longer than they must, and ending them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from polyclinic.core.errors import PolyclinicError

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LINUX = sys.platform.startswith("linux")
_LIBC = ctypes.CDLL(None) if _LINUX else None  # here: between fork and exec other threads may hold the loader's lock


def require_flower() -> None:
    """Say how to install Flower where it is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise PolyclinicError("Flower is not installed; run: pip install 'polyclinic[flower]'.") from None


def environment(home: Path, front: Path | None = None) -> dict[str, str]:
    """For a Flower program: its own home, no telemetry, no update check, no installation of packages, quick polls."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([*([str(front)] if front else []), beside, os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def start(command: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """Start a program that gets no Ctrl-C of its own and, on Linux, ends with this process however that ends."""
    return subprocess.Popen(
        list(command), env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        preexec_fn=_end_with_parent if _LINUX else None,
    )  # fmt: skip


def _end_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def end(process: subprocess.Popen[bytes] | None, patience: float = 8.0) -> None:
    """Ask a program and what it started to end, then insist."""
    if process is None:
        return
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, patience)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait)
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def birth(pid: int) -> str:
    """When a process began, so that another one that later gets its number is not taken for it."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if state in "ZX" else numbers[18]  # ended, and nobody has asked how


def lives(pid: int, born: str) -> bool:
    """Whether the process of this number that began at ``born`` is still at work."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return born != "ended" and birth(pid) == born


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """Path of one of Flower's programs, beside this Python or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise PolyclinicError(f"{name} was not found; run: pip install 'polyclinic[flower]'.")
    return found


def call(command: Sequence[str], env: Mapping[str, str], what: str, timeout: float = 120) -> str:
    """Run a program to its end and give back what it printed; its failure is one sentence."""
    try:
        done = subprocess.run(
            list(command), env=dict(env), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise PolyclinicError(f"{what} took longer than {timeout:g} s; see the log and try again.") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise PolyclinicError(f"{what} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout
