"""Which user a connection over loopback belongs to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyclinic.deploy.coordinator import local_users as module
from polyclinic.deploy.coordinator.local_users import connection_owner, owners_are_known

needs_proc = pytest.mark.skipif(not owners_are_known(), reason="connections are looked up in /proc/net/tcp")


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        made = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with made:
        yield made


@needs_proc
def test_the_owner_of_a_connection(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()[:2]) as client:
        served, peer = listener.accept()
        with served:
            assert connection_owner(peer, served.getsockname()) == os.geteuid()
            assert connection_owner(peer, (served.getsockname()[0], 1)) is None
            assert connection_owner((peer[0], 1), served.getsockname()) is None
            assert client.getsockname()[:2] == peer[:2]


@needs_proc
def test_a_connection_that_its_client_closed_is_nobody_s(listener: socket.socket) -> None:
    """Linux shows it as one of user 0: a request that was left behind would count as root's."""
    client = socket.create_connection(listener.getsockname()[:2])
    served, peer = listener.accept()
    with served:
        client.sendall(b"start a run")
        client.close()
        ends = time.monotonic() + 60
        while connection_owner(peer, served.getsockname()) is not None:
            assert time.monotonic() < ends
        assert served.recv(100) == b"start a run"


@needs_proc
def test_a_listener_for_both_families_is_reached_over_ipv4() -> None:
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1])):
        served, peer = listener.accept()
        with served:
            assert peer[0] == "::ffff:127.0.0.1"
            assert connection_owner(peer, served.getsockname()) == os.geteuid()


def test_without_an_address_there_is_no_owner() -> None:
    assert connection_owner(None, ("127.0.0.1", 1)) is None
    assert connection_owner(("127.0.0.1", 1), None) is None


def test_a_table_as_linux_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if module.sys.byteorder != "little":
        pytest.skip("the lines are those of a little-endian machine")
    table = tmp_path / "tcp"
    lines = [
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
        "   0: 0100007F:B3C1 0100007F:C872 01 00000000:00000001 00:00000000 00000000     0        0 182126 1 0 20 4 30",
        "   1: 0100007F:C872 0100007F:B3C1 01 00000000:00000000 00:00000000 00000000 65534        0 182125 2 0 20 0 0",
    ]
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(module, "_TABLES", (table, tmp_path / "missing"))
    ends = ("127.0.0.1", 0xC872), ("127.0.0.1", 0xB3C1)
    assert connection_owner(*ends) == 65534
    for old, new in ((" 01 ", " 05 "), (" 182125 ", " 0 ")):
        table.write_text("\n".join([lines[0], lines[2].replace(old, new, 1)]) + "\n")
        assert connection_owner(*ends) is None
