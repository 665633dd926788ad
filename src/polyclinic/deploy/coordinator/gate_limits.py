"""Limits of the gate: how large a request's body may be, and how often somebody may fail."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION = "polyclinic_connection"
"""Key of ``scope["state"]``: a dictionary that all requests of one connection share (bounded_connection.py)."""
SITES_PATH = "/v1/fleet/"
ANNOUNCE_PATH, OBJECT_PATH = f"{SITES_PATH}push-messages", f"{SITES_PATH}push-object"
SMALL_BODY = 2**16
"""Requests that hold a key, a few numbers or identifiers: a kilobyte at most in practice."""
LARGEST_OBJECT = 2**26 + 2**23
"""Flower cuts arrays into objects of 5 MiB. A message's plain data are one object, up to 2**26 letters (records.py)."""
LOCAL_BODY = 2**28
"""The server's own process announces the objects of messages to all sites at once."""


def largest_body(path: str, limit: int) -> int:
    """The most bytes of a body for this path, where an answer of a site has at most ``limit`` bytes.

    An announcement lists an answer's objects: some 70 bytes for each 5 MiB, and a few for each tensor group.
    """
    if path == OBJECT_PATH:
        return LARGEST_OBJECT
    if path == ANNOUNCE_PATH:
        return 2**20 + limit // 2**14
    return SMALL_BODY if path.startswith(SITES_PATH) else LOCAL_BODY


def declared_length(scope: Scope) -> int | None:
    """The bytes that a request says its body has; ``None`` if it does not say."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() and len(text) < 20 else None


async def reply(
    scope: Scope, send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer a request without reading its body, and close the connection unless that body is known to be small."""
    length = declared_length(scope)
    # A connection that is closed while its caller still sends may lose the answer, which an honest site must hear.
    close = () if length is not None and length <= SMALL_BODY else ((b"connection", b"close"),)
    content = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text.encode())).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*content, *close, *headers]})
    await send({"type": "http.response.body", "body": text.encode()})


async def pass_on(
    app: App, scope: Scope, receive: Receive, send: Send, largest: int, on_bytes: Callable[[int], bool] | None = None
) -> None:
    """Hand a request to ``app``, and cut it off where its body gets larger than ``largest``.

    ``on_bytes`` hears of every piece, and says whether the request may go on.
    """
    too_large = "This request is larger than the server takes, or this answer is larger than engine.max_message_mb."
    declared = declared_length(scope)
    if declared is not None and declared > largest:
        await reply(scope, send, 413, too_large)
        return
    received, cut, answered = 0, False, False

    async def counted() -> MutableMapping[str, Any]:
        nonlocal received, cut
        event = await receive()
        size = len(event.get("body", b""))
        received += size
        if cut or received > largest or (size and on_bytes is not None and not on_bytes(size)):
            cut = True
            return {"type": "http.disconnect"}
        return event

    async def send_unless_cut(event: MutableMapping[str, Any]) -> None:
        nonlocal answered
        if not cut or answered:
            answered = True
            await send(event)

    try:
        await app(scope, counted, send_unless_cut)
    except Exception:
        if not cut:
            raise
    if cut and not answered:
        await reply({**scope, "headers": [(b"transfer-encoding", b"chunked")]}, send, 413, too_large)


class RateLimiter:
    """A token bucket for each key: ``burst`` at once, then ``per_second``; the ``most`` recent keys are remembered."""

    def __init__(
        self, burst: float, per_second: float, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.burst, self.per_second, self.most, self.clock = burst, per_second, most, clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> bool:
        """Whether ``key`` may do it once more now."""
        now = self.clock()
        tokens, since = self._buckets.pop(key, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.per_second)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return allowed


def caller_address(scope: Scope) -> str:
    """The address of the caller without its port."""
    client = scope.get("client")
    return str(client[0]) if client else "an unknown address"


def network_of(address: str) -> str:
    """Who counts as one caller: an IPv4 address, or the /64 of an IPv6 address, all of which one machine may have."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
