"""Answers of a server that are too large, compressed or elsewhere, to each call of a site."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_server import FleetServer
from polyclinic.engines.flower.bounded_http import LARGEST_ANSWER
from polyclinic.engines.flower.fleet_client import ConnectionLostError, FleetClient, RejectedError
from polyclinic.engines.flower.records import to_records


def test_a_large_answer_within_the_limit_arrives(server: FleetServer, client: FleetClient) -> None:
    server.runs[3].bundle = bytes(LARGEST_ANSWER - 1000)
    assert len(client.run_info(3).bundle) == LARGEST_ANSWER - 1000


@pytest.mark.parametrize("path", ["pull-messages", "get-run", "get-fab", "pull-object", "send-node-heartbeat"])
@pytest.mark.parametrize(
    "response",
    [
        (200, {}, b"\x00" * (LARGEST_ANSWER + 1)),
        (200, {"content-encoding": "gzip"}, b"\x1f\x8b"),
        (302, {"location": "http://127.0.0.1:9/"}, b""),
    ],
    ids=["endless", "compressed", "elsewhere"],
)
def test_an_answer_without_end_or_in_disguise_breaks_the_connection(
    path: str, response: Any, server: FleetServer, client: FleetClient
) -> None:
    server.send(3, to_records({"weights": b"x"}, {}))
    incoming = client.next_message() if path == "pull-object" else None
    server.hooks[path] = lambda _: response
    calls: dict[str, Any] = {
        "pull-messages": client.next_message,
        "get-run": lambda: client.run_info(3),
        "get-fab": lambda: client.run_info(3),
        "pull-object": lambda: client.fetch(incoming, 10**9),  # type: ignore[arg-type]
        "send-node-heartbeat": client.heartbeat,
    }
    with pytest.raises((ConnectionLostError, RejectedError)):
        calls[path]()
