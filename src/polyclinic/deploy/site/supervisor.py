"""A hospital's side: the resident worker and a SuperNode, both kept alive, with one readable log."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json, write_text
from polyclinic.deploy.processes import call, environment, free_port, program
from polyclinic.deploy.site.bundle_guard import write_guard
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_client import HOME, SETTINGS_FILE
from polyclinic.deploy.supervised_process import SupervisedProcess

_PROBE = 1.0
_HANDSHAKE = 5.0
_EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 10, 62, 64  # OpenSSL's codes
_OFTEN = 2
_AGAIN = 60.0
_REJECTED = ("[2001]", "[2004]", "code: 2001", "code: 2004", "Invalid SuperNode authentication")


@dataclass(frozen=True)
class ServerConnection:
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

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.server.rpartition(":")
        return host.strip("[]"), int(port)

    def answers(self) -> bool | None:
        """Whether somebody listens there; ``None`` if that cannot be told, as when a network swallows packets."""
        try:
            with socket.create_connection(self.place, timeout=2):
                return True
        except ConnectionRefusedError:
            return False
        except OSError:
            return None

    def trouble(self) -> str | None:
        """What stands between the site and its server, in a sentence: Flower's log has it among much else, or not."""
        try:
            with socket.create_connection(self.place, timeout=_HANDSHAKE) as plain:
                if self.ca is not None:
                    ssl.create_default_context(cafile=self.ca).wrap_socket(plain, server_hostname=self.place[0]).close()
        except ssl.SSLCertVerificationError as error:
            advice = {
                _EXPIRED: "the coordinator must renew it (polyclinic keys server)",
                _OTHER_NAME: "give --server with a name that is in it (polyclinic keys server --host NAME)",
                _OTHER_ADDRESS: "give --server with an address that is in it (polyclinic keys server --host ADDRESS)",
            }.get(error.verify_code, "ask the coordinator for the ca.crt of this federation (--ca)")
            return f"the certificate of {self.server} is not trusted ({error.verify_message.rstrip('.')}); {advice}"
        except ssl.SSLError as error:
            return f"{self.server} does not speak TLS as expected ({error.reason}); check the port"
        except socket.gaierror:
            return f"no machine of the name {self.place[0]} is known; check --server and the network"
        except ConnectionError:
            return None  # nobody is there now; what is said of that is said elsewhere
        except OSError as error:
            return f"{self.server} cannot be reached ({error.strerror or error}); check the network and the firewall"
        return None


class SiteSupervisor:
    """Supervises: what ends is started again, and everything ends with this process."""

    def __init__(
        self, settings: SiteSettings, line: ServerConnection, say: Callable[[str], None], give_up: float | None = None
    ) -> None:
        self.settings, self.line, self.say, self.give_up = settings, line, say, give_up
        self.home = Path(settings.home)
        self._probed = 0.0
        self._waiting = False
        self._trouble: str | None = None
        self._told = 0.0
        self._rejected_since: float | None = None
        self._rejections = 0

    def worker_command(self) -> list[str]:
        """The resident worker, which belongs to this process."""
        settings = str(self.home / SETTINGS_FILE)
        return [sys.executable, "-m", "polyclinic.deploy.site.worker", settings, "--owner", str(os.getpid())]

    def _node_command(self) -> list[str]:
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        return [program("flower-supernode"), *self.line.options(), *port]

    def __enter__(self) -> SiteSupervisor:
        with ExitStack() as stack:
            write_json(self.home / SETTINGS_FILE, asdict(self.settings))
            flower = self.home / "flower"
            flower.mkdir(exist_ok=True)
            self._env = {**environment(flower, write_guard(self.home / "guard")), HOME: str(self.home.resolve())}
            logs = [
                stack.enter_context(path.open("wb")) for path in (self.home / "worker.log", flower / "supernode.log")
            ]
            self.worker = SupervisedProcess(self.worker_command, self._env, logs[0])
            self.node = SupervisedProcess(self._node_command, self._env, logs[1])
            stack.callback(self.worker.end)
            stack.callback(self.node.end)
            self.worker.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> None:
        """Say what is new, and start again what has ended."""
        for line in self.worker.new_lines():
            self.say(line)
        pause = self.worker.keep()
        if pause is not None:
            self.say(f"the worker has ended; it starts again in {pause:g} s")
        self._hear_node()
        self._look_at_server()
        self._give_up()

    def _look_at_server(self) -> None:
        """Connect as soon as a server is there. Flower's own retries get slower and slower, and outlive a server."""
        if time.monotonic() - self._probed < _PROBE:
            return
        self._probed = time.monotonic()
        there = self.line.answers()
        if there is not False:
            self._waiting = False
            if not self.node.runs and self._in_trouble():
                self.node.end(patience=2)
            elif self.node.process is None:
                self.node.begin()
            elif self.node.keep() is not None and not self._rejections:
                self.say("the connection ended; connecting again")
        elif not self._waiting:
            # The server is down, and with it everything that it knew of this connection.
            self._waiting = True
            self.say(f"nobody listens on {self.line.server}; waiting for the server")
            self.node.end(patience=2)

    def _in_trouble(self) -> bool:
        """Whether something stands between; it is said at once, and again every minute while it lasts."""
        before, self._trouble = self._trouble, self.line.trouble()
        if self._trouble is None:
            self._rejected_since = None if before is not None else self._rejected_since
            return False
        self._rejected_since = self._rejected_since or time.monotonic()
        if self._trouble != before or time.monotonic() - self._told > _AGAIN:
            self._told = time.monotonic()
            self.say(self._trouble)
        return True

    def _hear_node(self) -> None:
        """Of what Flower writes, what a hospital needs to know; all of it is in ``flower/supernode.log``."""
        for line in self.node.new_lines():
            if "SuperNode ID" in line:
                self.say(f"connected to {self.line.server}")
                write_text(self.home / "node.txt", f"{self.line.server} {line.split()[-1]}")
                self._rejected_since, self._rejections = None, 0
            elif any(text in line for text in _REJECTED):
                self._rejected_since = self._rejected_since or time.monotonic()
                self._rejections += 1
                self._deactivate_old_node()
                if self._rejections % _OFTEN == 0:  # a server that has just started learns its sites a moment later
                    self.say(
                        f"{self.line.server} does not know this site's key; the coordinator must accept "
                        f"{self.settings.name}.pub (polyclinic keys accept) and restart or resume the run"
                    )

    def _give_up(self) -> None:
        since = self._rejected_since
        if self.give_up is not None and since is not None and time.monotonic() - since >= self.give_up:
            if self._trouble is not None:
                raise PolyclinicError(f"{self._trouble}.")
            raise PolyclinicError(
                f"{self.line.server} does not accept the key of site '{self.settings.name}'; ask the coordinator to "
                f"accept {self.settings.name}.pub with polyclinic keys accept."
            )

    def _deactivate_old_node(self) -> None:
        """Perhaps the server still waits for the life before this one, which ended without a word."""
        last = self.home / "node.txt"
        if self.line.key is None or self.line.ca is None or not last.exists():
            return
        server, _, number = last.read_text(encoding="utf-8").partition(" ")
        last.unlink()
        if server == self.line.server:
            command = [sys.executable, "-m", "polyclinic.deploy.site.deactivate_node", server, number]
            with suppress(PolyclinicError):
                call([*command, str(self.line.key), str(self.line.ca)], self._env, "taking leave", timeout=30)
