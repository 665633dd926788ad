"""The worker as its site sees it: a process that is asked over a channel, restarted when it ends, kept in limits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Condition, Event
from typing import IO, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.worker_channel import channel_pair, receive, send
from polyclinic.deploy.supervised_process import SupervisedProcess
from polyclinic.exchange.tensor_names import Blobs

SETTINGS_FILE = "site.json"
_START_TIMEOUT = 120.0
_ATTEMPTS = 4
_POLL_INTERVAL = 0.2


class StoppedError(Exception):
    """The site is being stopped; the answer is no longer wanted."""


@dataclass(frozen=True)
class WorkLimits:
    """The most seconds and bytes of memory that one request may take; ``None``: no limit."""

    seconds: float | None = None
    memory: float | None = None


class WorkerProcess(SupervisedProcess):
    """Started and restarted by the supervisor's thread; asked by the thread that speaks to the server."""

    def __init__(self, home: Path, env: Mapping[str, str], log: IO[bytes]) -> None:
        super().__init__(list, env, log)  # the command line depends on the channel, see launch
        self.home = home
        self._changed = Condition()
        self._channel: Connection | None = None

    def start(self) -> None:
        """Start the process with a new channel; the one before is closed."""
        ours, theirs = channel_pair()
        with theirs:
            self.launch(self.command_with(theirs.fileno()), pass_fds=(theirs.fileno(),))
        with self._changed:
            self._channel = ours
            self._changed.notify_all()

    def command_with(self, channel: int) -> list[str]:
        """The command line of the worker, which ends with this process."""
        settings = str(self.home / SETTINGS_FILE)
        options = ["--owner", str(os.getpid()), "--channel", str(channel)]
        return [sys.executable, "-m", "polyclinic.deploy.site.worker", settings, *options]

    def ask(self, blobs: Blobs, about: dict[str, Any], limits: WorkLimits, stop: Event) -> tuple[Blobs, dict[str, Any]]:
        """Pass a request on and wait for its answer; a worker that ends meanwhile is asked again."""
        for _ in range(_ATTEMPTS):
            channel = self._open_channel(stop)
            try:
                send(channel, blobs, about)
                self._wait(channel, limits, stop)
                return receive(channel)
            except (EOFError, OSError):
                with self._changed:
                    self._channel = None if self._channel is channel else self._channel
                channel.close()
        raise PolyclinicError(f"the site's worker ended {_ATTEMPTS} times while it was at work; see the site's log")

    def _open_channel(self, stop: Event) -> Connection:
        deadline = time.monotonic() + _START_TIMEOUT
        with self._changed:
            while self._channel is None:
                if stop.is_set():
                    raise StoppedError
                if time.monotonic() > deadline:
                    raise PolyclinicError("the site's worker does not start; see the site's log")
                self._changed.wait(_POLL_INTERVAL)
            return self._channel

    def _wait(self, channel: Connection, limits: WorkLimits, stop: Event) -> None:
        """Wait for an answer. A worker over a limit is killed: only that frees what it holds, whatever it does."""
        started = time.monotonic()
        while not channel.poll(_POLL_INTERVAL):
            if stop.is_set():
                raise StoppedError
            reason = self._excess(limits, time.monotonic() - started)
            if reason is not None:
                with self._changed:
                    self._channel = None
                if self.process is not None:
                    self.process.kill()
                channel.close()
                raise PolyclinicError(f"refused: {reason}")

    def _excess(self, limits: WorkLimits, seconds: float) -> str | None:
        """Which limit is exceeded, in a sentence, or ``None``."""
        if limits.seconds is not None and seconds > limits.seconds:
            return f"the request took longer than {limits.seconds:g} s, the site's policy (max_seconds_per_round)"
        if limits.memory is not None and self.process is not None:
            used = resident_bytes(self.process.pid)
            if used > limits.memory:
                return (
                    f"the request took {used / 1e9:.1f} GB of memory, the site's policy allows "
                    f"{limits.memory / 1e9:g} (max_memory_gb)"
                )
        return None


def resident_bytes(pid: int) -> int:
    """The memory of a process, where the system tells (Linux); else 0. Files that it has mapped, as it does prepared
    images, do not count: the system takes their memory back when it is needed."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    except (OSError, ValueError, IndexError):
        return 0


LimitsSource = Callable[[], WorkLimits]
"""Gives the limits of the next request: the policy is read again for each."""
