"""A connection to the server as uvicorn serves it, with bounds on what somebody can hold who sends no whole request.

Of uvicorn's two parsers the one of ``h11`` bounds the size of a request's headers, by 64 KiB; the other does not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from polyclinic.deploy.coordinator.gate_limits import CONNECTION, network_of

_CHECK_SECONDS = 20.0
_MOST_PER_ADDRESS = 256
_open: Counter[str] = Counter()


class BoundedConnection(H11Protocol):
    """Closes itself when no request comes whole within 20 to 40 s, or when its address has too many of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, and begin to look after it."""
        super().connection_made(transport)
        self.app_state: dict[str, Any] = {**self.app_state, CONNECTION: {}}
        self._address = network_of(self.client[0]) if self.client else ""
        self._last_request: object = self  # none was looked at yet
        _open[self._address] += 1
        self._check: asyncio.TimerHandle | None = None
        if _open[self._address] > _MOST_PER_ADDRESS and self._address not in ("127.0.0.1", "::1"):
            transport.abort()
        else:
            self._check = self.loop.call_later(_CHECK_SECONDS, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        _open[self._address] -= 1
        if not _open[self._address]:
            del _open[self._address]
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.cycle is self._last_request:
            self.transport.abort()
            return
        self._last_request = self.cycle if answered else self
        self._check = self.loop.call_later(_CHECK_SECONDS, self._close_if_idle)
