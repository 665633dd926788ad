"""The coordinator's side: SuperLink, accepted sites, the run, and one place to look at it."""

from __future__ import annotations

import errno
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import tomli_w

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_private, write_text
from polyclinic.core.version import VERSION
from polyclinic.deploy.coordinator.event_relay import Follower
from polyclinic.deploy.coordinator.gate import LIMIT, LIVE_FILE, LIVE_TOKEN
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles
from polyclinic.deploy.keys.key_folders import ServerKeys, accepted
from polyclinic.deploy.processes import birth, call, end, environment, lives, program, start
from polyclinic.deploy.site.bundle_guard import CLIENT, SERVER
from polyclinic.federation.observer import Observer

_CONNECTION = "polyclinic"
_START_PATIENCE = 90.0
_PORT_PATIENCE = 10.0


@dataclass(frozen=True)
class ListenAddress:
    """Where the server listens, and its keys; without keys nothing is encrypted and nobody is known."""

    host: str
    port: int
    keys: Path | None

    @property
    def local(self) -> str:
        """The address for programs on this machine."""
        return f"127.0.0.1:{self.port}" if self.host in ("0.0.0.0", "::", "") else f"{self.host}:{self.port}"


class CoordinatorSupervisor:
    """Starts the SuperLink, hands it the sites' keys, submits the run and follows it to its end."""

    def __init__(
        self, folder: Path, place: ListenAddress, observer: Observer, limit: int = 2**31, simulated: Sequence[str] = ()
    ) -> None:
        self.folder, self.place, self.observer, self.simulated = folder, place, observer, simulated
        self.limit = limit
        self.files = LaunchFiles(folder)
        self.home = self.files.folder / "home"
        self.superlink: Popen[bytes] | None = None
        self._server: tuple[int, str] | None = None  # the server's process, and when it began

    def __enter__(self) -> CoordinatorSupervisor:
        self.home.mkdir(parents=True, exist_ok=True)
        # That of an earlier start: whoever watches would take it for this one.
        self.files.outcome.unlink(missing_ok=True)
        self._require_port()
        self._stack = ExitStack()
        log = self._stack.enter_context((self.files.folder / "superlink.log").open("ab"))
        command = [sys.executable, "-m", "polyclinic.deploy.coordinator.gate", *self._options()]
        self.superlink = start(command, self._environment(), log)
        self._stack.callback(end, self.superlink)
        try:
            self._connect()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def accept_sites(self, sites: Sequence[str]) -> None:
        """Register the keys of accepted sites; names are the coordinator's, so that no site can choose another."""
        assert self.place.keys is not None

        def register(site: tuple[str, Path]) -> None:
            name, public = site
            self._flwr("supernode", "register", str(public), _CONNECTION, "--name", name, what=f"registering {name}")

        wanted = {name: file for name, file in accepted(self.place.keys).items() if name in sites}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(register, wanted.items()))

    def serve(
        self,
        plan: Launch,
        folder: Path,
        settings: dict[str, Any] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Submit a run whose folder is ``folder`` and follow it to its end; raises where it cannot be finished.

        ``check`` is called all the while: it may look after sites that this process started.
        """
        self._submit(plan, folder, settings or {})
        outcome = self._follow(LaunchFiles(folder), check)
        if not outcome["finished"]:
            raise PolyclinicError(str(outcome["error"]))

    def _submit(self, plan: Launch, folder: Path, settings: dict[str, Any]) -> None:
        """Start the run. Its bundle is one file of settings; the code is what is installed at each end."""
        plan.save(folder)
        self._server = None
        app = LaunchFiles(folder).folder / "app"
        table = {
            "project": {"name": "polyclinic", "version": VERSION.split("+")[0], "license": "Apache-2.0"},
            "tool": {"flwr": {"app": {
                "publisher": "polyclinic", "components": {"serverapp": SERVER, "clientapp": CLIENT},
                "config": {"run": str(folder.resolve()), **settings},
            }}},
        }  # fmt: skip
        write_text(app / "pyproject.toml", tomli_w.dumps(table))
        more = ["--federation-config", f"num-supernodes={len(self.simulated)} client-resources-num-cpus=1"]
        self._flwr("run", str(app), _CONNECTION, *(more if self.simulated else []), what="starting the run")

    def _follow(self, files: LaunchFiles, check: Callable[[], None] | None) -> dict[str, Any]:
        """Tell the observer what happens until the run ends; give back how it ended."""
        follower = Follower(files.relay, self.observer)
        started = time.monotonic()
        while True:
            follower.look()
            if files.outcome.exists():
                follower.look()
                outcome: dict[str, Any] = read_json(files.outcome)
                return outcome
            if check is not None:
                check()
            self._require_life(files, started)
            time.sleep(0.1)

    def _require_life(self, files: LaunchFiles, started: float) -> None:
        assert self.superlink is not None
        log = self.files.folder / "superlink.log"
        if self.superlink.poll() is not None:
            raise PolyclinicError(f"Flower's SuperLink ended (code {self.superlink.returncode}); see {log}.")
        if not files.pid.exists():
            if time.monotonic() - started > _START_PATIENCE:
                raise PolyclinicError(f"The server's process did not start within {_START_PATIENCE:g} s; see {log}.")
            return
        if self._server is None:
            pid = int(files.pid.read_text(encoding="utf-8"))
            self._server = pid, birth(pid)
        if not lives(*self._server):
            time.sleep(0.5)
            if not files.outcome.exists():
                raise PolyclinicError(f"The server's process ended without a word; see {log}, and go on with --resume.")

    def _require_port(self) -> None:
        """Wait a moment for a server that is on its way out; whoever else listens there would be taken for ours."""
        family = socket.AF_INET6 if ":" in self.place.host else socket.AF_INET
        ends = time.monotonic() + _PORT_PATIENCE
        while True:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.place.host, self.place.port))
                    return
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or time.monotonic() > ends:
                        raise PolyclinicError(
                            f"{self.place.host}:{self.place.port}: cannot listen there ({error.strerror or error}); "
                            "choose another --port or --host, or end the program that does."
                        ) from error
            time.sleep(0.2)

    def _options(self) -> list[str]:
        options = [
            "--host",
            self.place.host,
            "--port",
            str(self.place.port),
            "--disable-runtime-dependency-installation",
        ]
        if self.simulated:
            options.append("--simulation")
        if self.place.keys is None:
            return [*options, "--insecure"]
        keys = ServerKeys(self.place.keys)
        for file in (keys.ca_cert, keys.cert, keys.key):
            if not file.is_file():
                raise PolyclinicError(
                    f"{file}: not found; make it with: polyclinic keys server {keys.folder} --host NAME."
                )
        tls = ["--ssl-ca-certfile", keys.ca_cert, "--ssl-certfile", keys.cert, "--ssl-keyfile", keys.key]
        return [*options, *map(str, tls), "--enable-supernode-auth"]

    def _environment(self) -> dict[str, str]:
        token_file = self.folder / "watch.token"
        if not token_file.exists():
            write_private(token_file, secrets.token_urlsafe(24).encode())
        return {
            **environment(self.home),
            LIVE_FILE: str((self.folder / "live.json").resolve()),
            LIVE_TOKEN: token_file.read_text(encoding="utf-8"),
            LIMIT: str(self.limit),
        }

    def _connect(self) -> None:
        """Wait until the SuperLink answers."""
        connection: dict[str, Any] = {"address": self.place.local}
        if self.place.keys is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(ServerKeys(self.place.keys).ca_cert.resolve())
        table = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        write_text(self.home / "config.toml", tomli_w.dumps(table))
        ends = time.monotonic() + _START_PATIENCE
        host, _, port = self.place.local.rpartition(":")
        while True:
            assert self.superlink is not None
            if self.superlink.poll() is not None:
                log = self.files.folder / "superlink.log"
                raise PolyclinicError(f"Flower's SuperLink could not start on {self.place.local}; see {log}.")
            try:
                with socket.create_connection((host, int(port)), timeout=1):
                    return
            except OSError:
                if time.monotonic() > ends:
                    raise PolyclinicError(f"Flower's SuperLink does not answer on {self.place.local}.") from None
            time.sleep(0.1)

    def _flwr(self, *arguments: str, what: str) -> dict[str, Any]:
        said = call([program("flwr"), *arguments, "--format", "json"], self._environment(), what)
        try:
            answer: dict[str, Any] = json.loads(said[said.index("{") :])
        except ValueError:
            raise PolyclinicError(f"{what} failed: {said.strip()[-200:]}") from None
        if not answer.get("success", True):
            raise PolyclinicError(f"{what} failed: {answer.get('error-message', said.strip()[-200:])}")
        return answer
