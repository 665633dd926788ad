"""What a site is told when it cannot reach its server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from threading import Thread

import pytest

from polyclinic.deploy.processes import free_port
from polyclinic.deploy.site.server_connection import ServerConnection


def connection_to(keys: Path, server: str, whose: str = "ours") -> ServerConnection:
    site_keys = keys / whose / "hospitals" / "north"
    return ServerConnection(server, site_keys / "north.key", site_keys / "ca.crt")


def test_a_server_that_is_what_it_should_be_is_no_trouble(keys: Path, port: int) -> None:
    assert connection_to(keys, f"127.0.0.1:{port}").problem() is None


def test_the_wrong_authority_gets_a_sentence(keys: Path, port: int) -> None:
    problem = str(connection_to(keys, f"127.0.0.1:{port}", "theirs").problem())
    assert problem.startswith(f"127.0.0.1:{port}: the server's certificate is not trusted (")
    assert problem.endswith("give the ca.crt of this federation's coordinator as --ca")


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="only Linux has all of 127.0.0.0/8")
def test_an_address_that_is_not_in_the_certificate_gets_a_sentence(keys: Path, port: int) -> None:
    problem = str(connection_to(keys, f"127.0.0.2:{port}").problem())
    assert "is not trusted" in problem
    assert "connect to an address that is in the certificate" in problem


def test_a_name_that_nobody_knows_gets_a_sentence(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    far = connection_to(keys, "fed.example.org:8443")
    assert far.is_listening() is None
    assert far.problem() == "no machine of the name fed.example.org is known; check --server and the network"


def test_a_server_without_tls_gets_a_sentence(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            connection.close()

        Thread(target=serve, daemon=True).start()
        problem = str(connection_to(keys, f"127.0.0.1:{listener.getsockname()[1]}").problem())
    assert "does not speak TLS as expected" in problem


def test_a_certificate_file_that_vanished_gets_a_sentence_and_no_crash(keys: Path, port: int, tmp_path: Path) -> None:
    connection = ServerConnection(f"127.0.0.1:{port}", tmp_path / "north.key", tmp_path / "ca.crt")
    assert str(connection.problem()).startswith(f"{tmp_path / 'ca.crt'}: cannot be read")


def test_nobody_listening_is_no_problem_of_the_connection(keys: Path) -> None:
    nobody = connection_to(keys, f"127.0.0.1:{free_port()}")
    assert nobody.is_listening() is False
    assert nobody.problem() is None


def test_options_for_flower_with_and_without_keys() -> None:
    assert ServerConnection("[::1]:8443").host_and_port == ("::1", 8443)
    assert ServerConnection("a:1").supernode_options() == ["--insecure", "--superlink", "a:1"]
    options = ServerConnection("a:1", Path("n.key"), Path("ca.crt")).supernode_options()
    assert options == ["--root-certificates", "ca.crt", "--auth-supernode-private-key", "n.key", "--superlink", "a:1"]
