"""A site's end of the fleet protocol, over real HTTP, against servers that keep the rules and servers that do not."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.error import ApiErrorCode, FlowerError

from fleet_server import NODE, FleetServer
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.flower import fleet_client
from polyclinic.engines.flower.fleet_client import ConnectionLostError, FleetClient, RejectedError, RunEndedError
from polyclinic.engines.flower.records import from_records, to_records


def test_a_message_comes_in_and_its_answer_goes_out(server: FleetServer, client: FleetClient) -> None:
    assert client.next_message() is None
    blob = bytes(range(256)) * 50_000  # more than two of Flower's chunks
    server.send(3, to_records({"weights": blob, "shared/a": b""}, {"act": "train"}))
    incoming = client.next_message()
    assert incoming is not None
    assert incoming.run == 3
    assert client.run_info(3).bundle == b"files"
    assert from_records(client.fetch(incoming, 10**9)) == ({"weights": blob, "shared/a": b""}, {"act": "train"})
    client.reply(incoming, to_records({"weights": blob[::-1]}, {"kind": "Update"}))
    assert from_records(server.replies[0]) == ({"weights": blob[::-1]}, {"kind": "Update"})
    client.heartbeat()
    client.deactivate()
    assert server.calls[-2:] == ["send-node-heartbeat", "deactivate-node"]


def test_a_request_that_is_too_large_is_not_fetched_to_its_end(server: FleetServer, client: FleetClient) -> None:
    server.send(3, to_records({"weights": random.Random(0).randbytes(40 * 2**20)}, {}))
    incoming = client.next_message()
    assert incoming is not None
    with pytest.raises(PolyclinicError, match=r"larger than 8 MB \(max_mb_received\)"):
        client.fetch(incoming, 8_000_000)
    assert server.calls.count("pull-object") < 9, "of more than ten"


def test_one_object_that_is_named_twenty_times_counts_twenty_times(server: FleetServer, client: FleetClient) -> None:
    """Twenty equal chunks travel as one."""
    server.send(3, to_records({"weights": bytes(100 * 2**20)}, {}))
    incoming = client.next_message()
    assert incoming is not None
    with pytest.raises(PolyclinicError, match="larger when they are unpacked"):
        client.fetch(incoming, 50_000_000)
    assert server.calls.count("pull-object") < 9


def test_a_request_of_too_many_objects_is_not_fetched_at_all(
    server: FleetServer, client: FleetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_client, "_MOST_OBJECTS", 3)
    server.send(3, to_records({"weights": b"x"}, {}))
    incoming = client.next_message()
    assert incoming is not None
    with pytest.raises(PolyclinicError, match="consists of"):
        client.fetch(incoming, 10**9)
    assert "pull-object" not in server.calls


def error(code: int) -> bytes:
    return json.dumps(FlowerError(code, "hidden").to_json("no")).encode()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((401, {"polyclinic-reason": "unknown-key"}, b""), "key"),
        ((429, {"polyclinic-reason": "signature"}, b""), "key"),
        ((401, {"polyclinic-reason": "unknown-key"}, error(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)), "key"),
        ((401, {}, b"Invalid SuperNode authentication"), "key"),
        ((403, {}, error(ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED)), "key"),
        ((409, {}, error(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)), "active"),
        ((412, {}, error(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE)), "no"),
        ((418, {}, b"<html>"), "HTTP 418"),
    ],
)
def test_a_rejection_says_why(response: Any, reason: str, server: FleetServer) -> None:
    server.hooks["activate-node"] = lambda _: response
    client = FleetClient(f"127.0.0.1:{server.port}", None, None)
    with pytest.raises(RejectedError) as rejected:
        client.activate()
    assert rejected.value.reason == reason


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ahead", [12.0, -900.0])
def test_a_clock_that_is_wrong_is_named_with_the_seconds(named: bool, ahead: float, server: FleetServer) -> None:
    """Polyclinic's gate tells its time; of another server the date of HTTP tells it."""

    def reject(_: bytes) -> Any:
        then = datetime.now(UTC) - timedelta(seconds=ahead)
        date = then.strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"polyclinic-reason": "clock", "polyclinic-time": then.isoformat()} if named else {"date": date}
        return 401, headers, b"Invalid SuperNode authentication"

    server.hooks["activate-node"] = reject
    client = FleetClient(f"127.0.0.1:{server.port}", None, None)
    with pytest.raises(RejectedError) as rejected:
        client.activate()
    assert rejected.value.reason == "clock"
    assert rejected.value.ahead == pytest.approx(ahead, abs=60), "a busy machine may be late"


def test_a_server_that_is_starting_is_asked_again(server: FleetServer) -> None:
    server.hooks["activate-node"] = lambda _: (503, {"polyclinic-reason": "starting"}, b"")
    client = FleetClient(f"127.0.0.1:{server.port}", None, None)
    with pytest.raises(ConnectionLostError, match="starting or busy"):
        client.activate()
    server.hooks.clear()
    assert client.activate() == NODE


def test_a_run_that_has_ended_and_a_server_that_forgot_the_site(server: FleetServer, client: FleetClient) -> None:
    server.hooks["get-run"] = lambda _: (409, {}, error(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED))
    with pytest.raises(RunEndedError):
        client.run_info(3)
    server.hooks["send-node-heartbeat"] = lambda _: (200, {}, b"")
    with pytest.raises(ConnectionLostError, match="no longer knows"):
        client.heartbeat()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLostError):
        FleetClient("127.0.0.1:9", None, None).activate()
    key = tmp_path / "north.key"
    key.write_text("no key")
    with pytest.raises(ValueError, match="OpenSSH"):
        FleetClient("127.0.0.1:9", key, None)
