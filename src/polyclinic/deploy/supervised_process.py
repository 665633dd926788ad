"""A program that is kept alive: started again after a pause that grows while it does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen
from typing import IO

from polyclinic.deploy.processes import end, start

_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY = 0.5, 10.0, 30.0


class SupervisedProcess:
    """``command`` is asked for at every start, because a port may have to be another one."""

    def __init__(self, command: Callable[[], list[str]], env: Mapping[str, str], log: IO[bytes]) -> None:
        self.command, self.env, self.log = command, env, log
        self.process: Popen[bytes] | None = None
        self._since = self._read = 0.0
        self._pause, self._again = _FIRST_PAUSE, 0.0

    @property
    def runs(self) -> bool:
        """Whether the program is alive."""
        return self.process is not None and self.process.poll() is None

    def begin(self) -> None:
        """Start it."""
        self.process, self._since, self._again = start(self.command(), self.env, self.log), time.monotonic(), 0.0

    def end(self, patience: float = 8.0) -> None:
        """End it, and forget it."""
        end(self.process, patience)
        self.process = None

    def keep(self) -> float | None:
        """Start it again if it has ended and its pause is over; the length of a pause that begins now, if one does."""
        if self.process is None or self.runs:
            return None
        now = time.monotonic()
        if not self._again:
            steady = now - self._since > _STEADY
            self._pause = _FIRST_PAUSE if steady else min(2 * self._pause, _LONGEST_PAUSE)
            self._again = now + self._pause
            return self._pause
        if now >= self._again:
            self.begin()
        return None

    def new_lines(self) -> list[str]:
        """Whole lines that it wrote since the last look."""
        with Path(self.log.name).open("rb") as file:
            file.seek(int(self._read))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
