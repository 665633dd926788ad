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
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from flower_support import OPEN, make_desk, png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.processes import birth, lives
from polyclinic.deploy.site import worker_client as reception
from polyclinic.deploy.site import worker_socket as link
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_client import HOME, SETTINGS_FILE, forward_request
from polyclinic.deploy.site.worker_socket import Address, receive, send
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
        with Address(self.home).connect() as connection:
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
    other = make_desk(tmp_path / "home", tiny_federation).answer(Request.from_tensors({}, about))
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
    Address(running.home).connect().close()
    for nonsense in (b"no JSON", b"[]", b'{"about": {}}', b'{"groups": 5, "about": {}}', b"5"):
        with Address(running.home).connect() as connection:
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
    assert running.worker.wait(20) == 0


def test_a_process_that_ended_is_not_the_one_that_was() -> None:
    process = subprocess.Popen(["sleep", "60"])
    began = birth(process.pid)
    assert began == birth(process.pid) != ""
    assert lives(process.pid, began)
    assert not lives(process.pid, "another")
    process.kill()
    until(lambda: birth(process.pid) != began)
    assert not lives(process.pid, birth(process.pid)), "it ended, though nobody has asked how"
    process.wait()
    assert birth(process.pid) == ""
    assert not lives(process.pid, "")


def echo(listener: Listener, results: list[Any]) -> Thread:
    """Serve one caller."""

    def serve() -> None:
        try:
            with listener.accept() as connection:
                blobs, about = receive(connection)
                send(connection, blobs, {**about, "heard": True})
        except AuthenticationError as error:
            results.append(error)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    return thread


def call(home: Path, listener: Listener) -> tuple[dict[str, bytes], dict[str, Any]]:
    thread = echo(listener, [])
    with Address(home).connect() as connection:
        send(connection, {"weights": b"\x00" * 100_000, "shared/a": b""}, {"round": 1})
        answer = receive(connection)
    thread.join(10)
    return answer


@pytest.mark.parametrize("length", [0, 150, 400])
def test_homes_with_long_paths_work(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "gettempdir", lambda: "/tmp")
    home = tmp_path
    while length and len(str(home)) < length:
        home = home / ("x" * 60)
    with Address(home).listen() as listener:
        assert call(home, listener) == ({"weights": b"\x00" * 100_000, "shared/a": b""}, {"round": 1, "heard": True})
        socket = Path((home / "worker.path").read_text())
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700 or not length


def test_a_folder_for_sockets_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"polyclinic-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        Address(tmp_path / ("x" * 120)).listen()


def test_a_restart_gives_a_new_secret_and_the_old_one_opens_nothing(tmp_path: Path) -> None:
    """In one process both sockets have one name, as after a restart of a container that numbers alike."""
    first = Address(tmp_path).listen()
    old = (tmp_path / "worker.secret").read_text()
    second = Address(tmp_path).listen()
    assert (tmp_path / "worker.secret").read_text() != old
    errors: list[Any] = []
    thread = echo(second, errors)
    with pytest.raises(AuthenticationError):
        Client((tmp_path / "worker.path").read_text(), family="AF_UNIX", authkey=old.encode())
    thread.join(10)
    assert len(errors) == 1
    assert call(tmp_path, second)[1] == {"round": 1, "heard": True}
    second.close()
    first._listener._unlink.cancel()  # type: ignore[attr-defined]
    first.close()


def test_a_site_without_a_worker_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(reception, "_PATIENCE", 0.1)
    context: Any = SimpleNamespace(node_config={}, run_config={})
    with pytest.raises(PolyclinicError, match="the site's worker does not answer"):
        forward_request({}, {}, context)


@pytest.mark.parametrize(("hears", "ends"), [(True, 2), (False, 2), (True, 1)])
def test_a_worker_that_ends_at_work_is_called_again_and_then_gets_a_sentence(
    hears: bool, ends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(reception, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    context: Any = SimpleNamespace(node_config={}, run_config={})

    def end(listener: Listener) -> None:
        for _ in range(ends):
            with listener.accept() as connection:
                if hears:
                    connection.recv_bytes()
        with listener.accept() as connection:
            send(connection, *receive(connection))

    with Address(tmp_path).listen() as listener:
        Thread(target=end, args=(listener,), daemon=True).start()
        if ends == 1:
            assert forward_request({"weights": b"x"}, {"a": 1}, context) == ({"weights": b"x"}, {"a": 1})
            return
        with pytest.raises(PolyclinicError, match="worker ended 2 times while it was at work"):
            forward_request({}, {}, context)


@pytest.mark.parametrize("config", [{}, {"site": "north"}, {"data": "x"}, {"site": 5, "data": "x"}])
def test_a_supernode_of_its_own_must_say_which_site_it_is(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOME, raising=False)
    context: Any = SimpleNamespace(node_config=config, run_config={})
    with pytest.raises(PolyclinicError, match="--node-config has no"):
        forward_request({}, {}, context)


def test_in_a_simulation_the_site_is_in_this_process(tiny_federation: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "policy.toml").write_text(OPEN)
    config = {"sites": '["north", "south"]', "data": str(tiny_federation), "homes": str(sites), "device": "cpu"}
    context: Any = SimpleNamespace(node_config={"partition-id": 1, "num-partitions": 2}, run_config=config)
    answered, plain = forward_request(*describe(tiny_federation), context)
    answer = from_tensors(decode(answered), plain)
    assert isinstance(answer, Description)
    assert (answer.site, sum(answer.images.values())) == ("south", 4)
    assert (sites / "south" / "audit.jsonl").exists()
    answered, plain = forward_request({}, {}, context)
    assert isinstance(from_tensors(decode(answered), plain), Failure)
