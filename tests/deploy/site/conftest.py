"""Keys of two federations, and a TLS server of one of them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from polyclinic.deploy.keys.key_folders import ServerKeys, make_demo_keys


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
