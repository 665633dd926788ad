"""The socket between a Flower app and the site's worker: messages, the secret, paths of any length."""

from __future__ import annotations

import os
import stat
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from polyclinic.deploy.site import worker_socket
from polyclinic.deploy.site.worker_socket import WorkerAddress, receive, send


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
    with WorkerAddress(home).connect() as connection:
        send(connection, {"weights": b"\x00" * 100_000, "shared/a": b""}, {"round": 1})
        answer = receive(connection)
    thread.join(60)
    return answer


@pytest.mark.parametrize("length", [0, 150, 400])
def test_homes_with_long_paths_work(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_socket, "gettempdir", lambda: "/tmp")
    home = tmp_path
    while length and len(str(home)) < length:
        home = home / ("x" * 60)
    with WorkerAddress(home).listen() as listener:
        assert call(home, listener) == ({"weights": b"\x00" * 100_000, "shared/a": b""}, {"round": 1, "heard": True})
        socket = Path((home / "worker.path").read_text())
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700 or not length


def test_a_folder_for_sockets_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_socket, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"polyclinic-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        WorkerAddress(tmp_path / ("x" * 120)).listen()


def test_a_restart_gives_a_new_secret_and_the_old_one_opens_nothing(tmp_path: Path) -> None:
    """In one process both sockets have one name, as after a restart of a container that numbers alike."""
    first = WorkerAddress(tmp_path).listen()
    old = (tmp_path / "worker.secret").read_text()
    second = WorkerAddress(tmp_path).listen()
    assert (tmp_path / "worker.secret").read_text() != old
    errors: list[Any] = []
    thread = echo(second, errors)
    with pytest.raises(AuthenticationError):
        Client((tmp_path / "worker.path").read_text(), family="AF_UNIX", authkey=old.encode())
    thread.join(60)
    assert len(errors) == 1
    assert call(tmp_path, second)[1] == {"round": 1, "heard": True}
    second.close()
    first._listener._unlink.cancel()  # type: ignore[attr-defined]
    first.close()
