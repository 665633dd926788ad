"""Connections that send no whole request: closed after a while, and few for each address."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import uvicorn

from polyclinic.deploy.coordinator import bounded_connection as module
from polyclinic.deploy.coordinator.bounded_connection import BoundedConnection
from polyclinic.deploy.coordinator.gate_limits import CONNECTION


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says which connection a request came over."""
    if scope["type"] == "lifespan":
        return
    body = str(id(scope["state"][CONNECTION])).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def serve(during: Any) -> None:
    """A server on a free port, and what happens at it."""
    config = uvicorn.Config(app, port=0, http=BoundedConnection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        await during(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await task


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return await reader.readexactly(length)


def test_requests_of_a_connection_share_what_others_do_not() -> None:
    async def during(port: int) -> None:
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        first, again, other = await ask(*ends[0]), await ask(*ends[0]), await ask(*ends[1])
        assert first == again != other
        for _, writer in ends:
            writer.close()

    asyncio.run(serve(during))


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nslow: "])
def test_a_request_that_never_comes_whole_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.1)

    async def during(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()

    asyncio.run(serve(during))
    assert not module._open


def test_one_address_has_so_many_connections_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PER_ADDRESS", 3)
    monkeypatch.setattr(module, "network_of", lambda _: "192.0.2.7")

    async def during(port: int) -> None:
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for end in ends:
            await ask(*end)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(reader, writer)
        ends[0][1].close()
        await ends[0][1].wait_closed()
        while module._open["192.0.2.7"] >= 3:
            await asyncio.sleep(0.01)
        await ask(*(await asyncio.open_connection("127.0.0.1", port)))

    asyncio.run(serve(during))


def test_headers_without_end_are_refused() -> None:
    async def during(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nendless: " + b"x" * 2**18)
        with contextlib.suppress(ConnectionResetError):
            assert (await asyncio.wait_for(reader.read(100), 60)).startswith(b"HTTP/1.1 400")
        writer.close()

    asyncio.run(serve(during))
