"""Flower's SuperLink behind an access filter: other machines reach only the interface that sites need.

Flower serves everything on one port, and the interfaces that start runs and hand out their tasks authenticate nobody.
The gate lets other machines reach the sites' interface alone, where Flower checks their keys.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from polyclinic.runs.live_view import LIVE_PATH

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LIVE_FILE, LIVE_TOKEN, LIMIT = "POLYCLINIC_LIVE_FILE", "POLYCLINIC_LIVE_TOKEN", "POLYCLINIC_MESSAGE_LIMIT"
_SITES_PATH = "/v1/fleet/"
_KEY_HEADER = b"flwr-public-key"
_MOST_COUNTERS = 10_000


class Gate:
    """ASGI middleware around the SuperLink. ``limit`` bounds the bytes of one answer of a site."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.limit = int(os.environ.get(LIMIT, 2**31))
        self.received: dict[bytes, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to Flower, or reject it."""
        if scope["type"] == "lifespan" or (scope["type"] != "http" and from_this_machine(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close"})
        elif scope["path"] == LIVE_PATH:
            await self._live(scope, send)
        elif scope["path"].startswith(_SITES_PATH):
            await self._from_site(scope, receive, send)
        elif from_this_machine(scope):
            await self.app(scope, receive, send)
        else:
            await _reply(send, 403, b"Only sites are served from other machines.")

    async def _from_site(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the bytes that a site uploads; the count is reset by each answer that it announces."""
        key = dict(scope["headers"]).get(_KEY_HEADER, str(scope.get("client")).encode())
        if scope["path"] == f"{_SITES_PATH}push-messages":
            if len(self.received) > _MOST_COUNTERS:  # anybody can invent keys; Flower rejects them later
                self.received.clear()
            self.received[key] = 0
        if scope["path"] != f"{_SITES_PATH}push-object":
            await self.app(scope, receive, send)
            return
        if self.received.get(key, 0) > self.limit:
            await _reply(send, 413, b"This answer is larger than engine.max_message_mb.")
            return

        async def counted() -> MutableMapping[str, Any]:
            event = await receive()
            self.received[key] = self.received.get(key, 0) + len(event.get("body", b""))
            return event if self.received[key] <= self.limit else {"type": "http.disconnect"}

        await self.app(scope, counted, send)

    async def _live(self, scope: Scope, send: Send) -> None:
        """Send the live view of the run to clients with the coordinator's token."""
        token, file = os.environ.get(LIVE_TOKEN, ""), Path(os.environ.get(LIVE_FILE, ""))
        presented = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
        if not token or not hmac.compare_digest(presented, token.encode()):
            await _reply(send, 401, b"A token is needed; the coordinator has it in the run folder.")
        elif not file.is_file():
            await _reply(send, 404, b"No run is live.")
        else:
            await _reply(send, 200, file.read_bytes())


def from_this_machine(scope: Scope) -> bool:
    """Whether a request came over the loopback interface."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


async def _reply(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """``flower-superlink`` with the gate outermost; fails rather than serve without it."""
    from flwr.superlink import extensions
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(Gate),)
    outermost: object = superlink._get_middleware()[0].cls
    if outermost is not Gate:
        raise SystemExit("This version of Flower has no place for the gate; install the version that polyclinic pins.")
    flower_superlink()


if __name__ == "__main__":
    main()
