"""What a hospital is told when it cannot reach its server, and what a coordinator is told when it cannot be one."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json, write_text
from polyclinic.deploy.coordinator import supervisor as module
from polyclinic.deploy.coordinator.launch import LaunchFiles
from polyclinic.deploy.coordinator.run_server import ServerSettings, run_server
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor, ListenAddress
from polyclinic.deploy.keys.key_folders import ServerKeys, make_demo_keys
from polyclinic.deploy.processes import birth, free_port
from polyclinic.deploy.site.run_site import check_site
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import ServerConnection, SiteSupervisor
from polyclinic.federation.observer import Observer
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.folder import RunFolder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        make_demo_keys(folder / name, ["north"], ["127.0.0.1"])
    return folder


@pytest.fixture(scope="module")
def port(keys: Path) -> Iterator[int]:
    """A server with our certificate that says nothing, on every loopback address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = ServerKeys(keys / "ours" / "server")
    context.load_cert_chain(server.cert, server.key)
    listener = socket.create_server(("0.0.0.0", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def line(keys: Path, server: str, whose: str = "ours") -> ServerConnection:
    own = keys / whose / "hospitals" / "north"
    return ServerConnection(server, own / "north.key", own / "ca.crt")


def test_a_server_that_is_what_it_should_be_is_no_trouble(keys: Path, port: int) -> None:
    assert line(keys, f"127.0.0.1:{port}").trouble() is None


def test_the_wrong_authority_gets_a_sentence(keys: Path, port: int) -> None:
    said = str(line(keys, f"127.0.0.1:{port}", "theirs").trouble())
    assert said.startswith(f"the certificate of 127.0.0.1:{port} is not trusted (")
    assert said.endswith("ask the coordinator for the ca.crt of this federation (--ca)")


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="only Linux has all of 127.0.0.0/8")
def test_an_address_that_is_not_in_the_certificate_gets_a_sentence(keys: Path, port: int) -> None:
    said = str(line(keys, f"127.0.0.2:{port}").trouble())
    assert "is not trusted" in said
    assert "give --server with an address that is in it" in said


def test_a_name_that_nobody_knows_gets_a_sentence(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    far = line(keys, "fed.example.org:8443")
    assert far.answers() is None
    assert far.trouble() == "no machine of the name fed.example.org is known; check --server and the network"


def test_a_server_without_tls_gets_a_sentence(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            connection.close()

        Thread(target=serve, daemon=True).start()
        said = str(line(keys, f"127.0.0.1:{listener.getsockname()[1]}").trouble())
    assert "does not speak TLS as expected" in said


def test_files_that_are_neither_key_nor_certificate_get_a_sentence(keys: Path, tmp_path: Path) -> None:
    own = keys / "ours" / "hospitals" / "north"
    settings = SiteSettings("north", str(tmp_path), str(tmp_path))
    with pytest.raises(PolyclinicError, match=r"north\.pub: not a private key"):
        check_site(settings, ServerConnection("127.0.0.1:1", own / "north.pub", own / "ca.crt"), print)
    with pytest.raises(PolyclinicError, match=r"north\.pub: not a PEM certificate"):
        check_site(settings, ServerConnection("127.0.0.1:1", own / "north.key", own / "north.pub"), print)


def test_a_port_that_is_taken_gets_a_sentence_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PORT_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = ListenAddress("127.0.0.1", listener.getsockname()[1], None)
        with (
            pytest.raises(PolyclinicError, match=r"cannot listen there \(Address already in use\); choose another"),
            CoordinatorSupervisor(tmp_path, place, Observer()),
        ):
            pass
    assert not (tmp_path / "flower" / "superlink.log").exists()


def test_a_port_that_becomes_free_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    coordinator = CoordinatorSupervisor(
        tmp_path, ListenAddress("127.0.0.1", listener.getsockname()[1], None), Observer()
    )
    Thread(target=lambda: (time.sleep(0.3), listener.close()), daemon=True).start()
    coordinator._require_port()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_a_server_process_that_was_killed_is_noticed_though_nobody_asks_how_it_ended(tmp_path: Path) -> None:
    """Flower's SuperExec does not wait for what it started, so that a killed ServerApp keeps its number."""
    coordinator = CoordinatorSupervisor(tmp_path, ListenAddress("127.0.0.1", free_port(), None), Observer())
    files = LaunchFiles(tmp_path)
    link, app = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        coordinator.superlink = link
        write_text(files.pid, str(app.pid))
        coordinator._require_life(files, time.monotonic())
        app.kill()
        while birth(app.pid) != "ended":
            time.sleep(0.02)
        with pytest.raises(PolyclinicError, match="ended without a word"):
            coordinator._require_life(files, time.monotonic())
    finally:
        for process in (link, app):
            process.kill()
            process.wait()


def test_a_certificate_that_is_not_trusted_is_said_once_a_minute_and_can_be_given_up(
    keys: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SuperNode is started against it, which would only say that a connection ended that there never was."""
    said: list[str] = []
    settings = SiteSettings("north", str(tmp_path), str(tmp_path / "home"))
    own = keys / "ours" / "hospitals" / "north" / "north.key"
    theirs = keys / "theirs" / "server" / "ca.crt"
    monkeypatch.setattr("polyclinic.deploy.site.supervisor._PROBE", 0.0)
    monkeypatch.setattr(SiteSupervisor, "worker_command", lambda _: ["sleep", "60"])
    with SiteSupervisor(
        settings, ServerConnection(f"127.0.0.1:{port}", own, theirs), said.append, give_up=1.0
    ) as hospital:
        hospital.look()
        hospital.look()
        assert [("is not trusted" in line) for line in said] == [True]
        assert hospital.node.process is None
        ends = time.monotonic() + 30
        with pytest.raises(PolyclinicError, match="is not trusted"):  # noqa: PT012
            while time.monotonic() < ends:
                hospital.look()
                time.sleep(0.05)


def test_a_finished_run_is_not_resumed_with_another_recipe(tmp_path: Path) -> None:
    recipe = make_recipe({"federation": "far", "data": {"size": [16, 16]}, "engine": {"name": "flower"}})
    folder = RunFolder(tmp_path / "run")
    folder.open(recipe, resume=False)
    write_json(folder.summary_file, {"average": {}})
    make_demo_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    settings = ServerSettings("127.0.0.1", 1, tmp_path / "keys" / "server")
    assert run_server(recipe, folder.path, settings, Observer(), resume=True) == {"average": {}}
    other = recipe.model_copy(update={"seed": 7})
    with pytest.raises(PolyclinicError, match=r"this run is finished, with another recipe \(seed differs"):
        run_server(other, folder.path, settings, Observer(), resume=True)
