"""The supervisor of the server: starts Flower's SuperLink, registers sites, submits a run and follows it to its end."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

import tomli_w

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, require_space, write_private, write_text
from polyclinic.core.version import VERSION
from polyclinic.deploy.coordinator.event_relay import Follower
from polyclinic.deploy.coordinator.gate import LIMIT, LIVE_FILE, LIVE_TOKEN, NOTICES_FILE, SITES_FILE
from polyclinic.deploy.coordinator.gate_authentication import write_sites
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles
from polyclinic.deploy.coordinator.registration import register_sites
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import accepted
from polyclinic.deploy.processes import environment, is_alive, program, run_program, start, start_time, stop
from polyclinic.deploy.site.run_guard import CLIENT, SERVER
from polyclinic.federation.observer import Observer

_CONNECTION = "polyclinic"  # name of the connection in Flower's config.toml
_START_TIMEOUT = 300.0  # a busy machine may need minutes
_PORT_TIMEOUT = 10.0


class CoordinatorSupervisor:
    """Context manager around a running SuperLink, which serves one run after another.

    ``limit`` is the most bytes of one answer of a site; ``simulated`` are the sites of a simulation.
    """

    def __init__(
        self,
        folder: Path,
        address: ListenAddress,
        observer: Observer,
        limit: int = 2**31,
        simulated: Sequence[str] = (),
    ) -> None:
        self.folder, self.address, self.observer, self.simulated = folder, address, observer, simulated
        self.limit = limit
        self.files = LaunchFiles(folder)
        self.superlink: Popen[bytes] | None = None
        self._server: tuple[int, str] | None = None  # id and start time of the server's process

    def __enter__(self) -> CoordinatorSupervisor:
        self.files.home.mkdir(parents=True, exist_ok=True)
        # The outcome of an earlier start would be taken for that of this one.
        self.files.outcome.unlink(missing_ok=True)
        # Without this file the gate tells sites that the server is starting.
        self.files.known_sites.unlink(missing_ok=True)
        self.files.gate_notices.unlink(missing_ok=True)
        self.address.require_free(_PORT_TIMEOUT)
        self._stack = ExitStack()
        log = self._stack.enter_context(self.files.superlink_log.open("ab"))
        options = [*self.address.superlink_options(), "--disable-runtime-dependency-installation"]
        options += ["--simulation"] if self.simulated else []
        command = [sys.executable, "-m", "polyclinic.deploy.coordinator.gate", *options]
        self.superlink = start(command, self._environment(), log)
        self._stack.callback(stop, self.superlink)
        try:
            self._wait_for_superlink()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def accept_sites(self, sites: Sequence[str]) -> None:
        """Register the keys of accepted sites under the coordinator's names, so that no site can choose its own.

        The gate lets these sites in, all at once, when the last of them is registered.
        """
        assert self.address.keys is not None
        wanted = {name: file for name, file in accepted(self.address.keys).items() if name in sites}
        register_sites(self.address, wanted)
        write_sites(self.files.known_sites, wanted)

    def serve(
        self,
        launch: Launch,
        folder: Path,
        settings: dict[str, Any] | None = None,
        on_poll: Callable[[], None] | None = None,
    ) -> None:
        """Submit a run whose folder is ``folder`` and follow it to its end; raises if it cannot be finished.

        ``settings`` go into the run's configuration. ``on_poll`` is called several times a second, for example to poll
        supervisors of sites that this process started.
        """
        self._submit(launch, folder, settings or {})
        outcome = self._follow(LaunchFiles(folder), on_poll)
        if not outcome["finished"]:
            raise PolyclinicError(str(outcome["error"]))

    def _submit(self, launch: Launch, folder: Path, settings: dict[str, Any]) -> None:
        """Start the run. Its bundle is one file of settings; the code is what is installed on each machine."""
        launch.save(folder)
        self._server = None
        bundle = LaunchFiles(folder).bundle
        table = {
            "project": {"name": "polyclinic", "version": VERSION.split("+")[0], "license": "Apache-2.0"},
            "tool": {"flwr": {"app": {
                "publisher": "polyclinic", "components": {"serverapp": SERVER, "clientapp": CLIENT},
                "config": {"run": str(folder.resolve()), "owner": os.getpid(), **settings},
            }}},
        }  # fmt: skip
        write_text(bundle / "pyproject.toml", tomli_w.dumps(table))
        simulation = ["--federation-config", f"num-supernodes={len(self.simulated)} client-resources-num-cpus=1"]
        options = simulation if self.simulated else []
        self._flwr("run", str(bundle), _CONNECTION, *options, what="starting the run")

    def _follow(self, files: LaunchFiles, on_poll: Callable[[], None] | None) -> dict[str, Any]:
        """Pass the server's events on to the observer until the run ends; give back its outcome."""
        follower, notices = (Follower(path, self.observer) for path in (files.relay, self.files.gate_notices))
        started = time.monotonic()
        while True:
            notices.look()
            follower.look()
            if files.outcome.exists():
                follower.look()
                outcome: dict[str, Any] = read_json(files.outcome)
                return outcome
            if on_poll is not None:
                on_poll()
            self._require_running(files, started)
            time.sleep(0.1)

    def _require_running(self, files: LaunchFiles, started: float) -> None:
        """Raise if the SuperLink or the server's process has ended, or the latter did not start in time."""
        assert self.superlink is not None
        log = self.files.superlink_log
        if self.superlink.poll() is not None:
            raise PolyclinicError(f"Flower's SuperLink ended (code {self.superlink.returncode}); see {log}.")
        if not files.pid.exists():
            if time.monotonic() - started > _START_TIMEOUT:
                raise PolyclinicError(f"The server's process did not start within {_START_TIMEOUT:g} s; see {log}.")
            return
        if self._server is None:
            pid = int(files.pid.read_text(encoding="utf-8"))
            self._server = pid, start_time(pid)
        if not is_alive(*self._server):
            time.sleep(0.5)
            if not files.outcome.exists():
                require_space(self.folder)
                raise PolyclinicError(f"The server's process was killed; see {log}, and go on with --resume.")

    def _environment(self) -> dict[str, str]:
        if not self.files.token.exists():
            write_private(self.files.token, secrets.token_urlsafe(24).encode())
        return {
            **environment(self.files.home),
            LIVE_FILE: str((self.folder / "live.json").resolve()),
            LIVE_TOKEN: self.files.token.read_text(encoding="utf-8"),
            LIMIT: str(self.limit),
            NOTICES_FILE: str(self.files.gate_notices.resolve()),
            SITES_FILE: str(self.files.known_sites.resolve()) if self.address.keys else "",
        }

    def _wait_for_superlink(self) -> None:
        """Write the configuration of the connection, then wait until the SuperLink accepts it."""
        table = {"superlink": {"default": _CONNECTION, _CONNECTION: self.address.connection_table()}}
        write_text(self.files.home / "config.toml", tomli_w.dumps(table))
        deadline = time.monotonic() + _START_TIMEOUT
        host, _, port = self.address.local.rpartition(":")
        while True:
            assert self.superlink is not None
            if self.superlink.poll() is not None:
                log = self.files.superlink_log
                raise PolyclinicError(f"Flower's SuperLink could not start on {self.address.local}; see {log}.")
            try:
                with socket.create_connection((host, int(port)), timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise PolyclinicError(f"Flower's SuperLink does not answer on {self.address.local}.") from None
            time.sleep(0.1)

    def _flwr(self, *arguments: str, what: str) -> dict[str, Any]:
        output = run_program([program("flwr"), *arguments, "--format", "json"], self._environment(), what)
        try:
            answer: dict[str, Any] = json.loads(output[output.index("{") :])
        except ValueError:
            raise PolyclinicError(f"{what} failed: {output.strip()[-200:]}") from None
        if not answer.get("success", True):
            raise PolyclinicError(f"{what} failed: {answer.get('error-message', output.strip()[-200:])}")
        return answer
