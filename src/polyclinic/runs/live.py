"""``live.json``: where a run stands at this moment, for whoever watches. The record itself is ``events.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from polyclinic.federation.observer import Observer
from polyclinic.files import write_json
from polyclinic.runs.folder import RunFolder

_LINES = 8


class Live(Observer):
    """Rewrites a small file whenever something happens; each site has a status, and its newest numbers."""

    def __init__(self, folder: RunFolder, method: str, federation: str, engine: str) -> None:
        self.path = folder.path / "live.json"
        self.view: dict[str, Any] = {
            "method": method, "federation": federation, "engine": engine, "part": "", "round": 0, "rounds": 0,
            "started": time.time(), "updated": time.time(), "finished": False, "dice": None, "best_round": None,
            "sites": {}, "lines": [],
        }  # fmt: skip

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """A new part, with all its sites waiting."""
        waiting = {"status": "waiting", "bytes_up": 0, "bytes_down": 0}
        held = self.view["sites"]
        self.view |= {"part": part, "rounds": rounds, "round": done}
        self.view["sites"] = {site: {**waiting, **held.get(site, {})} for site in sites}
        self._write()

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """A site's status changed."""
        self.view["round"] = max(0, round_number)
        self.view["sites"].setdefault(site, {"bytes_up": 0, "bytes_down": 0}).update(status=status, since=time.time())
        self._write()

    def on_site(self, round_number: int, site: str) -> None:
        """An update was accepted."""
        self.on_status(round_number, site, "done")

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:  # noqa: ARG002
        """A site failed; the reason stays until it does better."""
        entry = self.view["sites"].setdefault(site, {"bytes_up": 0, "bytes_down": 0})
        if entry.get("status") not in ("late", "away", "refused"):
            entry["status"] = "refused"
        entry |= {"reason": reason, "since": time.time()}
        self._say(f"round {round_number + 1}: {site} {reason}")

    def on_round(self, event: dict[str, Any]) -> None:
        """The numbers of a round."""
        self.view |= {
            "round": event["round"] + 1,
            "dice": event["validation"]["dice"],
            "best_round": event["best_round"],
        }
        for site, entry in self.view["sites"].items():
            losses = event["losses"].get(site)
            if losses is not None:
                entry["loss"] = sum(losses.values())
                entry.pop("reason", None)
            if site in event["validation"]["sites"]:
                entry["dice"] = event["validation"]["sites"][site]
            for way in ("bytes_up", "bytes_down"):
                entry[way] = entry.get(way, 0) + event[way].get(site, 0)
        for warning in event["warnings"]:
            self._say(f"round {event['round'] + 1}: {warning}")
        self._write()

    def on_message(self, text: str) -> None:
        """Something worth a line."""
        self._say(text)

    def on_result(self, summary: dict[str, Any]) -> None:
        """The run is over."""
        self.view |= {"finished": True, "average": summary["average"]}
        self._write()

    def _say(self, text: str) -> None:
        self.view["lines"] = [*self.view["lines"][1 - _LINES :], text]
        self._write()

    def _write(self) -> None:
        self.view["updated"] = time.time()
        write_json(self.path, self.view)
