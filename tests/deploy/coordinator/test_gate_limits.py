"""Limits of the gate: sizes of bodies and rates of failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polyclinic.deploy.coordinator.gate_limits import (
    ANNOUNCE_PATH,
    LARGEST_OBJECT,
    LOCAL_BODY,
    OBJECT_PATH,
    SMALL_BODY,
    RateLimiter,
    declared_length,
    largest_body,
    network_of,
    pass_on,
)
from polyclinic.engines.flower import records


def test_an_honest_answer_fits() -> None:
    """A chunk of Flower's, the longest plain data that the server reads, and the list of an answer's objects."""
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    assert largest_body(OBJECT_PATH, 1) > FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + SMALL_BODY
    assert records._LONGEST_TEXT + SMALL_BODY < LARGEST_OBJECT
    for limit in (2**20, 2**31, 2**40):
        objects = limit // FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
        assert 2 * 70 * objects + SMALL_BODY < largest_body(ANNOUNCE_PATH, limit)
    assert largest_body("/v1/fleet/activate-node", 2**31) == SMALL_BODY
    assert largest_body("/v1/runtime/push-messages", 2**31) == LOCAL_BODY


def test_an_announcement_of_many_objects_has_the_size_that_is_reckoned_with() -> None:
    from flwr.proto.message_pb2 import ObjectTree

    children = [ObjectTree(object_id=f"{number:064x}") for number in range(1000)]
    assert len(ObjectTree(object_id="0" * 64, children=children).SerializeToString()) / 1000 < 70


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ([], 0), ([(b"content-length", b"12")], 12), ([(b"content-length", b"-1")], None),
        ([(b"content-length", b"1" * 30)], None), ([(b"content-length", b"x")], None),
        ([(b"transfer-encoding", b"chunked"), (b"content-length", b"0")], None),
    ],
)  # fmt: skip
def test_what_a_request_says_of_its_length(headers: list[tuple[bytes, bytes]], length: int | None) -> None:
    assert declared_length({"headers": headers}) == length


def test_an_error_of_the_app_is_not_hidden_and_one_of_a_cut_body_is_answered() -> None:
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"xxx", "more_body": True}

    async def app(_: Any, take: Any, __: Any) -> None:
        while (await take())["type"] != "http.disconnect":
            pass
        raise OSError("the caller is gone")

    scope = {"type": "http", "path": "/", "headers": []}
    asyncio.run(pass_on(app, scope, receive, send, 10))
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]

    async def broken(*_: Any) -> None:
        raise OSError("its own")

    with pytest.raises(OSError, match="its own"):
        asyncio.run(pass_on(broken, scope, receive, send, 10))


def test_a_bucket_is_used_up_and_fills_again() -> None:
    now = 0.0
    limiter = RateLimiter(2, 0.5, clock=lambda: now)
    assert [limiter.take("a") for _ in range(3)] == [True, True, False]
    assert limiter.take("b")
    now = 2.0
    assert [limiter.take("a") for _ in range(2)] == [True, False]
    now = 1000.0
    assert [limiter.take("a") for _ in range(3)] == [True, True, False]


def test_the_table_of_buckets_is_bounded() -> None:
    limiter = RateLimiter(1, 0, most=10, clock=lambda: 0.0)
    for number in range(1000):
        limiter.take(number)
    assert len(limiter._buckets) == 10
    assert not limiter.take(999)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("somewhere", "somewhere"),
    ],
)  # fmt: skip
def test_who_counts_as_one_caller(address: str, network: str) -> None:
    assert network_of(address) == network
