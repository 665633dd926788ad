"""A real worker process: requests over its socket, wrong callers, and its end with its owner."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flower_support import OPEN, make_handler, png_recipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_client import HOME, SETTINGS_FILE, forward_request
from polyclinic.deploy.site.worker_socket import WorkerAddress, receive, send
from polyclinic.exchange.messages import Description, Failure, from_tensors
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.recipe.files import recipe_text


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must happen."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


@dataclass
class Running:
    home: Path
    owner: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]

    def ask(self, blobs: dict[str, bytes], about: Any) -> Any:
        with WorkerAddress(self.home).connect() as connection:
            send(connection, blobs, about)
            answered, plain = receive(connection)
        return from_tensors(decode(answered), plain)


@pytest.fixture(scope="module")
def running(tiny_federation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A real worker, as ``polyclinic site`` starts one."""
    home = tmp_path_factory.mktemp("site") / "home"
    home.mkdir()
    policy = home.parent / "policy.toml"
    policy.write_text(OPEN)
    settings = SiteSettings("north", str(tiny_federation), str(home), str(policy), "cpu")
    (home / SETTINGS_FILE).write_text(json.dumps(asdict(settings)))
    owner = subprocess.Popen(["sleep", "300"])
    command = [sys.executable, "-m", "polyclinic.deploy.site.worker", str(home / SETTINGS_FILE)]
    with (home / "worker.log").open("wb") as log:
        worker = subprocess.Popen([*command, "--owner", str(owner.pid)], stdout=log, stderr=log)
    try:
        until(lambda: (home / "worker.path").exists() or worker.poll() is not None)
        yield Running(home, owner, worker)
    finally:
        for process in (owner, worker):
            process.kill()
            process.wait()


def describe(federation: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    tensors, about = Request("describe", "run", "all", recipe_text(png_recipe(federation))).to_tensors()
    return encode(tensors), about


def test_a_worker_answers_over_its_socket(running: Running, tiny_federation: Path, tmp_path: Path) -> None:
    blobs, about = describe(tiny_federation)
    answer = running.ask(blobs, about)
    assert isinstance(answer, Description)
    other = make_handler(tmp_path / "home", tiny_federation).answer(Request.from_tensors({}, about))
    assert isinstance(other, Description)
    assert answer.split_sha256 != other.split_sha256, "marked with a secret of each home"
    assert replace(answer, split_sha256="") == replace(other, split_sha256="")
    refused = running.ask({"weights": b"garbage"}, {})
    assert isinstance(refused, Failure)
    assert "safetensors" in refused.reason


def test_only_the_site_s_user_can_reach_it(running: Running) -> None:
    socket = Path((running.home / "worker.path").read_text())
    for file in (socket, running.home / "worker.secret", running.home / "worker.path"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert len((running.home / "worker.secret").read_text()) == 64


def test_callers_without_the_secret_or_with_nonsense_are_turned_away_and_the_worker_lives_on(
    running: Running, tiny_federation: Path
) -> None:
    path = (running.home / "worker.path").read_text()
    with pytest.raises(AuthenticationError):
        Client(path, family="AF_UNIX", authkey=b"guessed")
    WorkerAddress(running.home).connect().close()
    for nonsense in (b"no JSON", b"[]", b'{"about": {}}', b'{"groups": 5, "about": {}}', b"5"):
        with WorkerAddress(running.home).connect() as connection:
            connection.send_bytes(nonsense)
            with pytest.raises((EOFError, OSError)):
                connection.recv_bytes()
    assert isinstance(running.ask(*describe(tiny_federation)), Description)
    assert running.worker.poll() is None


def test_the_app_delivers_to_it(running: Running, tiny_federation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(running.home))
    context: Any = SimpleNamespace(node_config={}, run_config={})
    answered, plain = forward_request(*describe(tiny_federation), context)
    assert isinstance(from_tensors(decode(answered), plain), Description)


def test_the_worker_ends_when_its_owner_is_killed(running: Running) -> None:
    """The last test of this worker. The owner is not waited for: a process that ended and was not asked is no owner."""
    assert running.worker.poll() is None
    os.kill(running.owner.pid, signal.SIGKILL)
    assert running.worker.wait(120) == 0
