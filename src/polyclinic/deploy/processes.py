"""The programs of Flower: their paths and environment, without telemetry, update checks and long poll intervals."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.processes import end_with, is_alive, start, start_time, stop

__all__ = [
    "end_with", "environment", "free_port", "is_alive", "program", "require_flower", "run_program", "start",
    "start_time", "stop",
]  # fmt: skip


def require_flower() -> None:
    """Raise with the command that installs Flower where it is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise PolyclinicError("Flower is not installed; run: pip install 'polyclinic[flower]'.") from None


def environment(home: Path) -> dict[str, str]:
    """Environment variables of a Flower program: no telemetry, update check or package installation, short polls.

    ``home`` becomes ``FLWR_HOME``.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
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


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is not in use now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """Path of one of Flower's programs, beside this Python or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise PolyclinicError(f"{name} was not found; run: pip install 'polyclinic[flower]'.")
    return path


def run_program(command: Sequence[str], env: Mapping[str, str], what: str, timeout: float = 120) -> str:
    """Run a program to its end and give back its output; raises with ``what`` and its last line if it fails."""
    try:
        done = subprocess.run(
            list(command), env=dict(env), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise PolyclinicError(f"{what} took longer than {timeout:g} s; see the log and try again.") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise PolyclinicError(f"{what} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
