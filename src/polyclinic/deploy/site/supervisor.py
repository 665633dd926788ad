"""The supervisor of a site: its worker and its SuperNode are restarted when they end, and both write to one log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json, write_text
from polyclinic.deploy.processes import environment, free_port, program, run_program
from polyclinic.deploy.site.bundle_guard import write_guard
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_client import HOME, SETTINGS_FILE, worker_command
from polyclinic.deploy.supervised_process import SupervisedProcess

_PROBE_INTERVAL = 1.0
_REMINDER_INTERVAL = 60.0  # seconds between two lines about a problem that lasts
_REJECTIONS_BEFORE_WARNING = 2  # a server that has just started registers its sites a moment later
_REJECTION_MARKS = ("[2001]", "[2004]", "code: 2001", "code: 2004", "Invalid SuperNode authentication")


class SiteSupervisor:
    """Context manager: the two processes start with it and end with it; :meth:`poll` must be called regularly.

    ``log`` takes each line for the site's log. After ``give_up`` seconds of being rejected :meth:`poll` raises.
    """

    def __init__(
        self,
        settings: SiteSettings,
        connection: ServerConnection,
        log: Callable[[str], object],
        give_up: float | None = None,
    ) -> None:
        self.settings, self.connection, self.log, self.give_up = settings, connection, log, give_up
        self.home = Path(settings.home)
        self._node_file = self.home / "node.txt"
        self._last_probe = 0.0
        self._server_down = False
        self._problem: str | None = None
        self._problem_logged_at = 0.0
        self._rejected_since: float | None = None
        self._rejections = 0

    def worker_command(self) -> list[str]:
        """The command line of the worker, which ends with this process."""
        return worker_command(self.home, os.getpid())

    def _node_command(self) -> list[str]:
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        return [program("flower-supernode"), *self.connection.supernode_options(), *port]

    def __enter__(self) -> SiteSupervisor:
        with ExitStack() as stack:
            write_json(self.home / SETTINGS_FILE, asdict(self.settings))
            flower = self.home / "flower"
            flower.mkdir(exist_ok=True)
            self._env = {**environment(flower, write_guard(self.home / "guard")), HOME: str(self.home.resolve())}
            worker_log = stack.enter_context((self.home / "worker.log").open("wb"))
            node_log = stack.enter_context((flower / "supernode.log").open("wb"))
            self.worker = SupervisedProcess(self.worker_command, self._env, worker_log)
            self.node = SupervisedProcess(self._node_command, self._env, node_log)
            stack.callback(self.worker.stop)
            stack.callback(self.node.stop)
            self.worker.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def poll(self) -> None:
        """Log what the processes wrote, restart those that ended, connect when the server is there."""
        for line in self.worker.new_lines():
            self.log(line)
        pause = self.worker.restart_if_ended()
        if pause is not None:
            self.log(f"the worker has ended; it starts again in {pause:g} s")
        self._read_node_log()
        self._probe_server()
        self._raise_if_rejected_too_long()

    def _probe_server(self) -> None:
        """Connect as soon as a server listens: Flower's own retries get slower and slower, and outlive a server."""
        if time.monotonic() - self._last_probe < _PROBE_INTERVAL:
            return
        self._last_probe = time.monotonic()
        if self.connection.is_listening() is not False:
            self._server_down = False
            if not self.node.is_running and self._has_problem():
                self.node.stop(grace=2)
            elif self.node.process is None:
                self.node.start()
            elif self.node.restart_if_ended() is not None and not self._rejections:
                self.log("the connection ended; connecting again")
        elif not self._server_down:
            # With the server everything is gone that it knew of this connection.
            self._server_down = True
            self.log(f"nobody listens on {self.connection.server}; waiting for the server")
            self.node.stop(grace=2)

    def _has_problem(self) -> bool:
        """Whether the connection cannot be made; logged at once, and again every minute while it lasts."""
        before, self._problem = self._problem, self.connection.problem()
        if self._problem is None:
            self._rejected_since = None if before is not None else self._rejected_since
            return False
        self._rejected_since = self._rejected_since or time.monotonic()
        if self._problem != before or time.monotonic() - self._problem_logged_at > _REMINDER_INTERVAL:
            self._problem_logged_at = time.monotonic()
            self.log(self._problem)
        return True

    def _read_node_log(self) -> None:
        """Take what a site must know from the SuperNode's log; all of it is in ``flower/supernode.log``."""
        for line in self.node.new_lines():
            if "SuperNode ID" in line:
                self.log(f"connected to {self.connection.server}")
                write_text(self._node_file, f"{self.connection.server} {line.split()[-1]}")
                self._rejected_since, self._rejections = None, 0
            elif any(mark in line for mark in _REJECTION_MARKS):
                self._rejected_since = self._rejected_since or time.monotonic()
                self._rejections += 1
                self._deactivate_old_node()
                if self._rejections % _REJECTIONS_BEFORE_WARNING == 0:
                    self.log(
                        f"{self.connection.server} does not know this site's key; the coordinator must accept "
                        f"{self.settings.name}.pub (polyclinic keys accept) and restart or resume the run"
                    )

    def _raise_if_rejected_too_long(self) -> None:
        since = self._rejected_since
        if self.give_up is None or since is None or time.monotonic() - since < self.give_up:
            return
        if self._problem is not None:
            raise PolyclinicError(f"{self._problem}.")
        raise PolyclinicError(
            f"{self.connection.server} does not accept the key of site '{self.settings.name}'; ask the coordinator to "
            f"accept {self.settings.name}.pub with polyclinic keys accept."
        )

    def _deactivate_old_node(self) -> None:
        """The server may still count a node of this site as active that was killed without deactivating itself."""
        if self.connection.key is None or self.connection.ca is None or not self._node_file.exists():
            return
        server, _, number = self._node_file.read_text(encoding="utf-8").partition(" ")
        self._node_file.unlink()
        if server == self.connection.server:
            command = [sys.executable, "-m", "polyclinic.deploy.site.deactivate_node", server, number]
            files = [str(self.connection.key), str(self.connection.ca)]
            with suppress(PolyclinicError):
                run_program([*command, *files], self._env, "deactivating the node", timeout=30)
