"""Where the server listens: with TLS and keys unless told otherwise, and never on a port that somebody else has."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from threading import Thread

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import make_demo_keys


def test_with_keys_the_superlink_gets_tls_and_asks_sites_for_their_keys(tmp_path: Path) -> None:
    keys = make_demo_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    address = ListenAddress("0.0.0.0", 8443, keys.folder)
    options = address.superlink_options()
    assert options[:4] == ["--host", "0.0.0.0", "--port", "8443"]
    assert "--insecure" not in options
    assert "--enable-supernode-auth" in options
    for name, file in (("ca-certfile", keys.ca_cert), ("certfile", keys.cert), ("keyfile", keys.key)):
        assert options[options.index(f"--ssl-{name}") + 1] == str(file)
    assert address.connection_table() == {
        "address": "127.0.0.1:8443",
        "root-certificates": str(keys.ca_cert.resolve()),
    }


def test_a_missing_key_gets_a_sentence_and_never_an_open_port(tmp_path: Path) -> None:
    keys = make_demo_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    keys.key.unlink()
    with pytest.raises(PolyclinicError, match="not found; make it with: polyclinic keys server"):
        ListenAddress("127.0.0.1", 8443, keys.folder).superlink_options()


def test_only_without_keys_is_it_insecure() -> None:
    address = ListenAddress("10.0.0.1", 1, None)
    assert address.superlink_options() == ["--host", "10.0.0.1", "--port", "1", "--insecure"]
    assert address.connection_table() == {"address": "10.0.0.1:1", "insecure": True}


def test_a_port_that_is_taken_gets_a_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(PolyclinicError, match=r"cannot listen there \(Address already in use\); choose another"),
    ):
        ListenAddress("127.0.0.1", listener.getsockname()[1], None).require_free(0.1)


def test_a_port_that_becomes_free_in_a_moment_is_waited_for() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    Thread(target=lambda: (time.sleep(0.3), listener.close()), daemon=True).start()
    ListenAddress("127.0.0.1", listener.getsockname()[1], None).require_free(60)
