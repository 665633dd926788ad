"""A child process that is restarted when it ends, after a pause that doubles while it keeps ending early."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import IO

from polyclinic.deploy.processes import start, stop

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_STABLE_AFTER = 30.0  # seconds after which an end is not counted as another failed start


class SupervisedProcess:
    """``command`` is called for every start, because a port may have to be another one; output goes to ``log``."""

    def __init__(self, command: Callable[[], list[str]], env: Mapping[str, str], log: IO[bytes]) -> None:
        self.command, self.env, self.log = command, env, log
        self.process: Popen[bytes] | None = None
        self._started_at = 0.0
        self._bytes_read = 0
        self._pause, self._restart_at = _FIRST_PAUSE, 0.0

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process."""
        self.launch(self.command())

    def launch(self, command: list[str], pass_fds: tuple[int, ...] = ()) -> None:
        """Start the process with this command line; it inherits ``pass_fds``."""
        self.process = start(command, self.env, self.log, pass_fds)
        self._started_at, self._restart_at = time.monotonic(), 0.0

    def stop(self, grace: float = 8.0) -> None:
        """Stop the process; it is not restarted until :meth:`start`."""
        stop(self.process, grace)
        self.process = None

    def restart_if_ended(self) -> float | None:
        """Restart an ended process once its pause is over; the seconds of a pause that starts now, or ``None``."""
        if self.process is None or self.is_running:
            return None
        now = time.monotonic()
        if not self._restart_at:
            was_stable = now - self._started_at > _STABLE_AFTER
            self._pause = _FIRST_PAUSE if was_stable else min(2 * self._pause, _LONGEST_PAUSE)
            self._restart_at = now + self._pause
            return self._pause
        if now >= self._restart_at:
            self.start()
        return None

    def new_lines(self) -> list[str]:
        """Complete lines that it has written since the last call."""
        with Path(self.log.name).open("rb") as file:
            file.seek(self._bytes_read)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        return complete.decode("utf-8", "replace").splitlines()
