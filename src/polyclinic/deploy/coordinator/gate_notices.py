"""What the gate tells the coordinator: lines in a file that the supervisor follows, few however much is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from polyclinic.deploy.coordinator.gate_limits import RateLimiter

_PER_MINUTE = 1 / 60
_STRANGERS_AT_ONCE = 10  # anybody can invent keys; the coordinator's log must not fill with them
_LARGEST_FILE = 2**20


class Notices:
    """Writes ``["on_message", text]`` lines for :class:`~polyclinic.deploy.coordinator.event_relay.Follower`.

    Each subject gets a line a minute, and all strangers together ten at once and ten a minute.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # Tables of their own: strangers must not push a site out, nor use up its lines.
        self._sites, self._strangers = (RateLimiter(1, _PER_MINUTE, 1000) for _ in range(2))
        self._all_strangers = RateLimiter(_STRANGERS_AT_ONCE, _STRANGERS_AT_ONCE * _PER_MINUTE, 1)

    def about_site(self, site: str, text: str) -> None:
        """Something about a site that has shown its key."""
        if self._sites.take(site):
            self._write(text)

    def about_stranger(self, who: str, text: str) -> None:
        """Something about anybody else."""
        if self._strangers.take(who) and self._all_strangers.take("all"):
            self._write(text)

    def _write(self, text: str) -> None:
        logging.getLogger(__name__).warning(text)
        if self.path is None:
            return
        try:
            full = self.path.exists() and self.path.stat().st_size > _LARGEST_FILE
            with self.path.open("w" if full else "a", encoding="utf-8") as file:
                file.write(json.dumps(["on_message", text]) + "\n")
        except OSError as error:
            logging.getLogger(__name__).warning("%s: cannot be written (%s)", self.path, error)
