"""A real worker process: requests over its channel, and its end with its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from flower_support import OPEN, make_handler, png_recipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_process import SETTINGS_FILE, WorkerProcess, WorkLimits
from polyclinic.exchange.messages import Description, Failure, from_tensors
from polyclinic.exchange.receipts import take_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.recipe.files import recipe_text


@dataclass
class Running:
    owner: subprocess.Popen[bytes]
    worker: WorkerProcess

    def ask(self, blobs: dict[str, bytes], about: Any) -> Any:
        answered, plain = self.worker.ask(blobs, about, WorkLimits(), Event())
        assert take_receipt(plain) is not None
        return from_tensors(decode(answered), plain)


class OwnedWorker(WorkerProcess):
    """A worker that belongs to a process which a test can kill."""

    owner = 0

    def command_with(self, channel: int) -> list[str]:
        command = super().command_with(channel)
        command[command.index("--owner") + 1] = str(self.owner)
        return command


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
    with (home / "worker.log").open("wb") as log:
        worker = OwnedWorker(home, os.environ, log)
        worker.owner = owner.pid
        worker.start()
        try:
            yield Running(owner, worker)
        finally:
            owner.kill()
            owner.wait()
            worker.stop()


def describe(federation: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    tensors, about = Request("describe", "run", "all", recipe_text(png_recipe(federation))).to_tensors()
    return encode(tensors), about


def test_a_worker_answers_over_its_channel(running: Running, tiny_federation: Path, tmp_path: Path) -> None:
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
    assert isinstance(running.ask(*describe(tiny_federation)), Description), "it lives on"


def test_it_has_no_socket_that_anybody_could_reach(running: Running) -> None:
    process = running.worker.process
    assert process is not None
    folder = Path(f"/proc/{process.pid}")
    inodes = {str(file.readlink()) for file in (folder / "fd").iterdir()}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in (folder / "net" / table).read_text().splitlines()[1:]:
            assert f"socket:[{line.split()[9]}]" not in inodes, f"a socket of {table}"
    for line in (folder / "net" / "unix").read_text().splitlines()[1:]:
        inode, *path = line.split()[6:]
        assert not path or f"socket:[{inode}]" not in inodes, "a Unix socket with a path"


def test_the_worker_ends_when_its_owner_is_killed(running: Running) -> None:
    """The last test of this worker. The owner is not waited for: a process that ended and was not asked is no owner."""
    assert running.worker.is_running
    assert running.worker.process is not None
    os.kill(running.owner.pid, signal.SIGKILL)
    assert running.worker.process.wait(120) == 0
