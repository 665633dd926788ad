"""Start, watch and stop processes of one's own: none of them outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

from polyclinic.core.child_processes import die_with_parent

_OWNER_CHECK_INTERVAL = 0.5
_LINUX = sys.platform.startswith("linux")


def start(
    command: Sequence[str],
    env: Mapping[str, str],
    log: IO[bytes] | None,
    pass_fds: Sequence[int] = (),
    *,
    piped: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own (Ctrl-C does not reach it); on Linux it ends with this process.

    To be exact: with the thread that starts it, so that must be one that lives as long as the process. ``log`` gets
    what it writes; with ``piped`` its stdin and stdout are pipes to this process, and only its stderr goes there.
    """
    return subprocess.Popen(
        list(command), env=dict(env), stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
        stdout=subprocess.PIPE if piped else log, stderr=log, start_new_session=True,
        pass_fds=tuple(pass_fds), preexec_fn=_terminate_with_parent if _LINUX else None,
    )  # fmt: skip


def _terminate_with_parent() -> None:
    die_with_parent(signal.SIGTERM)


def stop(process: subprocess.Popen[bytes] | None, grace: float = 8.0) -> None:
    """Send SIGTERM to a program and all that it started, and SIGKILL to what is left after ``grace`` seconds."""
    if process is not None:
        stop_all([process], grace)


def stop_all(processes: Iterable[subprocess.Popen[bytes]], grace: float = 8.0) -> None:
    """Stop several programs at once, as :func:`stop` does one; all share the time of ``grace``."""
    processes = list(processes)
    for process in processes:
        _signal_group(process, signal.SIGTERM)
    ends = time.monotonic() + grace
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, ends - time.monotonic()))
        _signal_group(process, signal.SIGKILL)  # what it started, too
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


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
