"""Attacks on a real SuperLink behind the gate, over TLS: memory, keys, clocks, and other users of the machine."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from polyclinic.deploy.coordinator.gate_authentication import write_sites
from polyclinic.deploy.coordinator.gate_limits import largest_body
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import accepted, make_demo_keys
from polyclinic.deploy.processes import free_port
from polyclinic.federation.observer import Observer
from site_signatures import signed_headers

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="memory and sockets are looked up in /proc")
MEGABYTE = 2**20
FLOOD = 120 * MEGABYTE
ALLOWED_RISE = 24 * MEGABYTE
NOBODY = 65534


class Coordinator:
    """A SuperLink that knows one site, ``north``, and the ways to call it."""

    def __init__(self, folder: Path) -> None:
        make_demo_keys(folder / "keys", ["north", "stranger"], ["127.0.0.1"])
        server_keys = folder / "keys" / "server"
        self.stranger_listed = accepted(server_keys)["stranger"]
        self.hospitals = folder / "keys" / "hospitals"
        self.port = free_port()
        address = ListenAddress("127.0.0.1", self.port, server_keys)
        self.supervisor = CoordinatorSupervisor(folder / "run", address, Observer())
        self.files = self.supervisor.files
        self.ca = server_keys / "ca.crt"

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.ca))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def signed(self, name: str, ahead: float = 0.0, signer: str | None = None) -> dict[str, str]:
        """The headers of a site whose clock is ``ahead`` seconds wrong."""
        keys = [self.hospitals / who / f"{who}.key" for who in (name, signer or name)]
        return {**signed_headers(keys[0], ahead, keys[1]), "content-type": "application/protobuf"}

    def ask(self, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, dict[str, str]]:
        connection = self.connect()
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}
        finally:
            connection.close()

    def activate(self) -> None:
        """Activate ``north`` as an honest site does."""
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        public = load_ssh_public_key((self.hospitals / "north" / "north.pub").read_bytes())
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=300)
        connection = self.connect()
        connection.request("POST", "/v1/fleet/activate-node", request.SerializeToString(), self.signed("north"))
        answer = ActivateNodeResponse()
        answer.ParseFromString(connection.getresponse().read())
        self.node_id = answer.node_id

    def serves(self) -> bool:
        """Whether Flower answers a sign of life of the honest site."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node

        request = SendNodeHeartbeatRequest(node=Node(node_id=self.node_id), heartbeat_interval=300)
        return self.ask("/v1/fleet/send-node-heartbeat", self.signed("north"), request.SerializeToString())[0] == 200

    def flood(self, path: str, headers: dict[str, str], declared: bool) -> bytes:
        """Send ``FLOOD`` bytes as fast as the server takes them; the first bytes of its answer."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        context = ssl.create_default_context(cafile=str(self.ca))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            length = f"content-length: {FLOOD}" if declared else "transfer-encoding: chunked"
            lines = [f"POST {path} HTTP/1.1", "host: x", length, *(f"{k}: {v}" for k, v in headers.items()), "", ""]
            piece = b"x" * MEGABYTE
            framed = piece if declared else f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
            with suppress(OSError):
                secure.sendall("\r\n".join(lines).encode())
                for _ in range(FLOOD // MEGABYTE):
                    secure.sendall(framed)
            with suppress(OSError):
                return secure.recv(100)
            return b""

    def memory(self) -> tuple[int, int]:
        """Bytes in use now and at most so far."""
        assert self.supervisor.superlink is not None
        status = Path(f"/proc/{self.supervisor.superlink.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        return int(values["VmRSS"].split()[0]) * 1024, int(values["VmHWM"].split()[0]) * 1024

    def notices(self) -> str:
        return self.files.gate_notices.read_text() if self.files.gate_notices.exists() else ""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path_factory.mktemp("gate"))
    with made.supervisor:
        # Before the registration is finished a site hears that it is early, whatever its key.
        for name in ("north", "stranger"):
            status, headers = made.ask("/v1/fleet/activate-node", made.signed(name))
            assert (status, headers["polyclinic-reason"]) == (503, "starting")
        made.supervisor.accept_sites(["north"])
        made.activate()
        yield made


def test_a_site_is_served_when_all_sites_are_registered(coordinator: Coordinator) -> None:
    assert coordinator.serves()


def test_a_stranger_s_gigabyte_costs_no_memory(coordinator: Coordinator) -> None:
    """Without a key, with an unknown key, with a known key and a false signature; with and without a length."""
    assert coordinator.serves()
    assert coordinator.supervisor.superlink is not None
    before, _ = coordinator.memory()
    Path(f"/proc/{coordinator.supervisor.superlink.pid}/clear_refs").write_text("5")  # forget the highest value
    callers = ({}, coordinator.signed("stranger"), coordinator.signed("north", signer="stranger"))
    for path in ("pull-messages", "push-messages", "push-object"):
        for number, headers in enumerate(callers):
            answer = coordinator.flood(f"/v1/fleet/{path}", headers, declared=number != 0)
            assert not answer or answer.split()[1] in (b"401", b"429")
    coordinator.flood("/v1/polyclinic/live", {}, declared=False)
    now, highest = coordinator.memory()
    assert max(now, highest) - before < ALLOWED_RISE
    assert coordinator.serves()


def test_endless_headers_cost_no_memory(coordinator: Coordinator) -> None:
    before, _ = coordinator.memory()
    coordinator.flood("/v1/fleet/pull-messages", {"x": "y" * (64 * MEGABYTE)}, declared=True)
    assert coordinator.memory()[0] - before < ALLOWED_RISE
    assert coordinator.serves()


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"])
def test_a_site_s_own_requests_are_bounded_too(coordinator: Coordinator, path: str) -> None:
    before, _ = coordinator.memory()
    for declared in (True, False):
        answer = coordinator.flood(path, coordinator.signed("north"), declared)
        assert not answer or answer.split()[1] == b"413"
    # What is read of a body that does not tell its length is read up to the limit, and let go of.
    assert coordinator.memory()[0] - before < ALLOWED_RISE + 3 * largest_body(path, 2**31)
    assert coordinator.serves()


def test_each_refusal_has_its_reason(coordinator: Coordinator) -> None:
    path = "/v1/fleet/pull-messages"
    for headers, reason in (
        ({}, "unknown-key"),
        (coordinator.signed("stranger"), "unknown-key"),
        (coordinator.signed("north", signer="stranger"), "signature"),
        (coordinator.signed("north", ahead=7.3), "clock"),
        (coordinator.signed("north", ahead=-400), "clock"),
    ):
        status, answered = coordinator.ask(path, headers, b"small")
        assert (status in (401, 429), answered["polyclinic-reason"]) == (True, reason)
        if reason == "clock":
            assert status == 401
            assert abs(datetime.now(UTC) - datetime.fromisoformat(answered["polyclinic-time"])) < timedelta(minutes=5)
    assert "north was turned away: its clock is" in coordinator.notices()
    assert "this machine's; set both by NTP" in coordinator.notices()
    assert "a machine at 127.0.0.1" in coordinator.notices()


def test_strangers_behind_the_same_address_do_not_slow_an_honest_site(coordinator: Coordinator) -> None:
    stranger = coordinator.signed("stranger")
    statuses = (coordinator.ask("/v1/fleet/pull-messages", stranger)[0] for _ in range(200))
    assert 429 in statuses
    assert coordinator.serves()
    assert coordinator.ask("/v1/fleet/pull-messages", coordinator.signed("north", ahead=60))[0] == 401


def test_a_key_that_is_accepted_while_the_server_runs_is_read(coordinator: Coordinator) -> None:
    known = json.loads(coordinator.files.known_sites.read_text())
    assert list(known) == ["north"]
    public = coordinator.hospitals / "north" / "north.pub"
    write_sites(coordinator.files.known_sites, {"north": public, "stranger": coordinator.stranger_listed})
    try:
        status, headers = coordinator.ask("/v1/fleet/pull-messages", coordinator.signed("stranger"))
        assert status != 429
        assert "polyclinic-reason" not in headers  # Flower's own answer: it has not registered this key
    finally:
        write_sites(coordinator.files.known_sites, {"north": public})


BECOME_NOBODY = f"""
import encodings.idna, http.client, os, socket, ssl, sys
if sys.argv[2] == "nobody":  # only now: this user may not be able to read Python itself
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
port, context = int(sys.argv[1]), ssl._create_unverified_context()
"""
ASK = """
for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("POST", path, b"", {"content-type": "application/protobuf"})
    print(connection.getresponse().status)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def program_of(user: str, code: str, coordinator: Coordinator) -> str:
    """What a program of this machine's user prints; ``own`` is the user that runs the server."""
    command = [sys.executable, "-c", BECOME_NOBODY + code, str(coordinator.port), user]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_the_server_s_own_user_can_control_it(coordinator: Coordinator) -> None:
    statuses = program_of("own", ASK, coordinator).split()
    assert len(statuses) == 3
    assert "403" not in statuses


@needs_root
def test_another_user_of_the_machine_cannot_control_the_server(coordinator: Coordinator) -> None:
    assert program_of("nobody", ASK, coordinator).split() == ["403"] * 3
    assert f"this machine's user {NOBODY} was kept from controlling the server" in coordinator.notices()


FORWARDED = """
from time import monotonic, sleep
end, own = monotonic() + 30, []
while not own and monotonic() < end:  # connections of the server's own process to itself
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and fields[2].endswith(f":{port:04X}") and fields[7] == "0":
            own.append(int(fields[1].split(":")[1], 16))
    sleep(0.01)
for value in (f"127.0.0.1:{own[0]}", "127.0.0.1", f"10.0.0.1, 127.0.0.1:{own[0]}"):
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    headers = {"content-type": "application/protobuf", "x-forwarded-for": value, "x-forwarded-proto": "https"}
    connection.request("POST", "/v1/control/list-runs", b"", headers)
    print(connection.getresponse().status)
"""


@needs_root
def test_a_header_does_not_make_another_user_the_server_s_own(coordinator: Coordinator) -> None:
    """Behind a proxy the web server would take a caller's address from it, and look up the owner of that connection."""
    held = coordinator.connect()  # of the user that runs the server
    held.connect()
    try:
        assert program_of("nobody", FORWARDED, coordinator).split() == ["403"] * 3
    finally:
        held.close()
