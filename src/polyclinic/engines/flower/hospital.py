"""A hospital's side: the resident worker and a SuperNode, both kept alive, with one readable log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen
from typing import IO

from polyclinic.engines.flower.guard import write_guard
from polyclinic.engines.flower.processes import end, environment, free_port, program, start
from polyclinic.engines.flower.reception import HOME, SETTINGS_FILE
from polyclinic.engines.flower.settings import SiteSettings
from polyclinic.errors import PolyclinicError
from polyclinic.files import write_json

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STEADY = 30.0
_REJECTED = ("[2001]", "[2004]", "Invalid SuperNode authentication", "Failed to activate")


@dataclass(frozen=True)
class Line:
    """How to reach the server: over TLS with the site's key, or without both."""

    server: str
    key: Path | None = None
    ca: Path | None = None

    def options(self) -> list[str]:
        """For ``flower-supernode``."""
        if self.key is None or self.ca is None:
            return ["--insecure", "--superlink", self.server]
        return [
            "--root-certificates", str(self.ca), "--auth-supernode-private-key", str(self.key),
            "--superlink", self.server,
        ]  # fmt: skip


class Hospital:
    """Supervises: what ends is started again after a pause, and everything ends with this process."""

    def __init__(
        self, settings: SiteSettings, line: Line, say: Callable[[str], None], give_up: float | None = None
    ) -> None:
        self.settings, self.line, self.say, self.give_up = settings, line, say, give_up
        self.home = Path(settings.home)
        self.worker: Popen[bytes] | None = None
        self.node: Popen[bytes] | None = None
        self._since = {"worker": 0.0, "node": 0.0}
        self._pause = {"worker": _FIRST_PAUSE, "node": _FIRST_PAUSE}
        self._again = {"worker": 0.0, "node": 0.0}
        self._read = {"worker": 0, "node": 0}
        self._refused_since: float | None = None

    def __enter__(self) -> Hospital:
        self.home.mkdir(parents=True, exist_ok=True)
        write_json(self.home / SETTINGS_FILE, asdict(self.settings))
        self._stack = ExitStack()
        flower = self.home / "flower"
        flower.mkdir(exist_ok=True)
        self._logs: dict[str, IO[bytes]] = {
            "worker": self._stack.enter_context((self.home / "worker.log").open("wb")),
            "node": self._stack.enter_context((flower / "supernode.log").open("wb")),
        }
        self._stack.callback(self._end_both)
        self._env = {**environment(flower, write_guard(self.home / "guard")), HOME: str(self.home.resolve())}
        self._start_worker()
        self._start_node()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_both(self) -> None:
        end(self.node)
        end(self.worker)

    def look(self) -> None:
        """Say what is new, and start again what has ended."""
        self._tell("worker")
        self._tell_node()
        if self.worker is not None and self.worker.poll() is not None:
            self._restart("worker", self.worker.returncode, self._start_worker)
        if self.node is not None and self.node.poll() is not None:
            self._restart("node", self.node.returncode, self._start_node)

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "polyclinic.engines.flower.worker", str(self.home / SETTINGS_FILE)]
        self.worker = start([*command, "--owner", str(os.getpid())], self._env, self._logs["worker"])
        self._since["worker"] = time.monotonic()

    def _start_node(self) -> None:
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        self.node = start([program("flower-supernode"), *self.line.options(), *port], self._env, self._logs["node"])
        self._since["node"] = time.monotonic()

    def _restart(self, which: str, code: int, begin: Callable[[], None]) -> None:
        """Again after a pause that grows while it does not hold."""
        now = time.monotonic()
        if self._again[which] == 0.0:
            steady = now - self._since[which] > _STEADY
            self._pause[which] = _FIRST_PAUSE if steady else min(2 * self._pause[which], _LONGEST_PAUSE)
            self._again[which] = now + self._pause[which]
            name = "worker" if which == "worker" else "connection"
            self.say(f"{name} ended (code {code}); starting it again in {self._pause[which]:g} s")
        elif now >= self._again[which]:
            self._again[which] = 0.0
            begin()

    def _new_lines(self, which: str) -> list[str]:
        """Whole lines that a program wrote since the last look."""
        path = Path(self._logs[which].name)
        with path.open("rb") as file:
            file.seek(self._read[which])
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[which] += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def _tell(self, which: str) -> None:
        for line in self._new_lines(which):
            self.say(line)

    def _tell_node(self) -> None:
        """Of what Flower writes, what a hospital needs to know; all of it is in ``flower/supernode.log``."""
        for line in self._new_lines("node"):
            if "SuperNode ID" in line:
                self.say(f"connected to {self.line.server}")
                self._refused_since = None
            elif any(text in line for text in _REJECTED):
                self._refused_since = self._refused_since or time.monotonic()
                self.say(
                    f"{self.line.server} does not know this site's key; the coordinator must accept "
                    f"{self.settings.name}.pub (polyclinic keys accept) and restart or resume the run"
                )
        waited = time.monotonic() - self._refused_since if self._refused_since is not None else 0.0
        if self.give_up is not None and self._refused_since is not None and waited >= self.give_up:
            raise PolyclinicError(
                f"{self.line.server} does not accept the key of site '{self.settings.name}'; ask the coordinator to "
                f"accept {self.settings.name}.pub with polyclinic keys accept."
            )
