"""Flower's SuperLink behind an access filter: other machines reach only the interface that sites need.

Flower serves everything on one port, and the interfaces that start runs and hand out their tasks authenticate nobody.
The gate lets other machines reach the sites' interface alone, and there only sites whose key is known; of this
machine's users only the server's own reaches the rest. Who is refused is refused before the body is read.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import json
import os
import sys
from collections.abc import MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from polyclinic.deploy.coordinator.gate_authentication import KEY_HEADER, Rejected, SiteAuthentication
from polyclinic.deploy.coordinator.gate_limits import (
    ANNOUNCE_PATH,
    CONNECTION,
    OBJECT_PATH,
    SITES_PATH,
    App,
    RateLimiter,
    Receive,
    Scope,
    Send,
    caller_address,
    largest_body,
    network_of,
    pass_on,
    reply,
)
from polyclinic.deploy.coordinator.gate_notices import Notices
from polyclinic.deploy.coordinator.local_users import connection_owner, owners_are_known
from polyclinic.runs.live_view import LIVE_PATH

LIVE_FILE, LIVE_TOKEN, LIMIT = "POLYCLINIC_LIVE_FILE", "POLYCLINIC_LIVE_TOKEN", "POLYCLINIC_MESSAGE_LIMIT"
SITES_FILE, NOTICES_FILE = "POLYCLINIC_SITES_FILE", "POLYCLINIC_NOTICES_FILE"
_MOST_COUNTERS = 10_000
_NODE_ACTIVATION_FAILED = 2004  # of Flower's table of errors
_FAILURES_AT_ONCE, _FAILURES_PER_SECOND = 20, 1.0


class Gate:
    """ASGI middleware around the SuperLink; its settings are the environment variables above.

    ``limit`` bounds the bytes of one answer of a site. Without a file of sites there are no keys (``--insecure``).
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.limit = int(os.environ.get(LIMIT, 2**31))
        self.received: dict[str, int] = {}
        sites, notices = os.environ.get(SITES_FILE), os.environ.get(NOTICES_FILE)
        self.authentication = SiteAuthentication(Path(sites)) if sites else None
        self.notices = Notices(Path(notices) if notices else None)
        self.failures = RateLimiter(_FAILURES_AT_ONCE, _FAILURES_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to Flower, or reject it."""
        kind = scope["type"]
        if kind == "lifespan":
            await self.app(scope, receive, send)
        elif kind == "http" and scope["path"] == LIVE_PATH:
            await self._live(scope, send)
        elif kind == "http" and scope["path"].startswith(SITES_PATH):
            await self._from_site(scope, receive, send)
        elif not from_this_machine(scope):
            await self._forbid(scope, send, "Only sites are served from other machines.")
        elif not self._is_own_user(scope):
            await self._forbid(scope, send, "Only the user that runs the server may do this.")
        elif kind == "http":
            await pass_on(self.app, scope, receive, send, largest_body(scope["path"], self.limit))
        else:
            await self.app(scope, receive, send)

    async def _forbid(self, scope: Scope, send: Send, text: str) -> None:
        if scope["type"] == "http":
            await reply(scope, send, 403, text)
        else:
            await send({"type": "websocket.close"})

    def _is_own_user(self, scope: Scope) -> bool:
        """Whether a caller on this machine is the user that runs the server, or root, who could become it anyway."""
        if not owners_are_known():
            return True
        # A connection keeps its owner, and to look it up takes some milliseconds.
        connection = scope.get("state", {}).get(CONNECTION, {})
        if connection.get("owner") is None:
            connection["owner"] = connection_owner(scope.get("client"), scope.get("server"))
        owner = connection["owner"]
        if owner in (os.geteuid(), 0):
            return True
        who = "unknown" if owner is None else str(owner)
        self.notices.about_stranger(who, f"a program of this machine's user {who} was kept from controlling the server")
        return False

    async def _from_site(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a known site through, with a limit on what it sends."""
        path = scope["path"]
        if self.authentication is None:
            caller = dict(scope["headers"]).get(KEY_HEADER, b"").decode("latin-1") or str(scope.get("client"))
        else:
            verdict = self.authentication.check(scope["headers"], caller_address(scope))
            if isinstance(verdict, Rejected):
                await self._turn_away(scope, send, verdict)
                return
            caller = verdict.site
        if path == ANNOUNCE_PATH:
            if len(self.received) > _MOST_COUNTERS:  # without keys anybody can invent callers
                self.received.clear()
            self.received[caller] = 0

        def count(size: int) -> bool:
            self.received[caller] = self.received.get(caller, 0) + size
            return self.received[caller] <= self.limit

        if path == OBJECT_PATH and self.received.get(caller, 0) > self.limit:
            await reply(scope, send, 413, "This answer is larger than engine.max_message_mb.")
            return
        largest = largest_body(path, self.limit)
        await pass_on(self.app, scope, receive, send, largest, count if path == OBJECT_PATH else None)

    async def _turn_away(self, scope: Scope, send: Send, verdict: Rejected) -> None:
        """Say why by a header; those who only guess soon hear no more than 429."""
        address = caller_address(scope)
        status = verdict.status
        if verdict.guilty and not self.failures.take(network_of(address)):
            status = 429
        elif verdict.guilty:
            shown = sha256(dict(scope["headers"]).get(KEY_HEADER, b"")).hexdigest()
            self.notices.about_stranger(f"{address} {verdict.reason} {shown}", verdict.notice)
        elif verdict.notice:
            self.notices.about_site(verdict.site, verdict.notice)
        text = "The server is starting; try again."
        if verdict.reason != "starting":
            # In the form of Flower's own errors, which a SuperNode writes into its log.
            detail = f"Invalid SuperNode authentication: {verdict.reason}."
            text = json.dumps({"code": _NODE_ACTIVATION_FAILED, "detail": detail})
        await reply(scope, send, status, text, verdict.headers())

    async def _live(self, scope: Scope, send: Send) -> None:
        """Send the live view of the run to clients with the coordinator's token."""
        token, file = os.environ.get(LIVE_TOKEN, ""), Path(os.environ.get(LIVE_FILE, ""))
        presented = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
        if not token or not hmac.compare_digest(presented, token.encode()):
            status = 401 if self.failures.take(network_of(caller_address(scope))) else 429
            await reply(scope, send, status, "A token is needed; the coordinator has it in the run folder.")
        elif not file.is_file():
            await reply(scope, send, 404, "No run is live.")
        else:
            await reply(scope, send, 200, file.read_text(encoding="utf-8"))


def from_this_machine(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request came over the loopback interface, or from the address that the server itself listens on."""
    client, server = scope.get("client"), scope.get("server")
    if client and server and client[0] == server[0]:
        return True
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def main() -> None:
    """``flower-superlink`` with the gate outermost; fails rather than serve without it."""
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    from polyclinic.deploy.coordinator.bounded_connection import BoundedConnection

    if not os.environ.get(SITES_FILE) and "--insecure" not in sys.argv:
        raise SystemExit(f"{SITES_FILE} is not set, so no site could be known; start it with polyclinic server.")
    extensions.get_middleware = lambda: (Middleware(Gate),)
    outermost: object = superlink._get_middleware()[0].cls
    if outermost is not Gate:
        raise SystemExit("This version of Flower has no place for the gate; install the version that polyclinic pins.")
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # would open further ports, without the gate
    # A caller's address is its connection's: by a header any user of this machine could name the server's own.
    uvicorn.run = functools.partial(uvicorn.run, http=BoundedConnection, proxy_headers=False)
    flower_superlink()


if __name__ == "__main__":
    main()
