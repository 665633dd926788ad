"""Start and stop the programs of Flower, without telemetry, update checks and long poll intervals."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

from polyclinic.core.child_processes import die_with_parent
from polyclinic.core.errors import PolyclinicError

_OWNER_CHECK_INTERVAL = 0.5
_LINUX = sys.platform.startswith("linux")


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


def start(
    command: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own (Ctrl-C does not reach it); on Linux it ends with this process.

    To be exact: with the thread that starts it, so that must be one that lives as long as the process.
    """
    return subprocess.Popen(
        list(command), env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        pass_fds=tuple(pass_fds), preexec_fn=_terminate_with_parent if _LINUX else None,
    )  # fmt: skip


def _terminate_with_parent() -> None:
    die_with_parent(signal.SIGTERM)


def stop(process: subprocess.Popen[bytes] | None, grace: float = 8.0) -> None:
    """Send SIGTERM to a program and all that it started, and SIGKILL to what is left after ``grace`` seconds."""
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def start_time(pid: int) -> str:
    """When a process started, to distinguish it from a later one with this id; "ended" for a zombie, "" for none."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if state in "ZX" else numbers[18]


def is_alive(pid: int, started: str) -> bool:
    """Whether the process with this id and this :func:`start_time` still runs."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return started != "ended" and start_time(pid) == started


def end_with(owner: int) -> None:
    """End this process, from a thread, as soon as the process ``owner`` has ended, however that was."""
    started = start_time(owner)

    def watch() -> None:
        while is_alive(owner, started):
            time.sleep(_OWNER_CHECK_INTERVAL)
        os._exit(0)

    Thread(target=watch, name="owner", daemon=True).start()


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
