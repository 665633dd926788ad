"""``live.json``: where a run stands at this moment, for whoever watches. The record itself is ``events.jsonl``."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from types import TracebackType
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.observer import Observer
from polyclinic.runs.folder import RunFolder

LIVE_PATH = "/v1/polyclinic/live"
"""Where a coordinator serves the view of its run over HTTPS."""
_LINES = 8
_TROUBLE = frozenset({"late", "away", "refused", "failed"})


class LiveView(Observer):
    """Hears what happens and keeps the view: each site with its status, its newest numbers and its last problem."""

    def __init__(self, folder: RunFolder, method: str, federation: str, engine: str) -> None:
        self.folder = folder
        self.begun = -1  # the round that sites are at work on
        now = time.time()
        self.view: dict[str, Any] = {
            "method": method, "federation": federation, "engine": engine, "part": "", "round": 0, "rounds": 0,
            "started": now, "updated": now, "finished": False, "dice": None, "best_round": None, "best_dice": None,
            "seconds": None, "stuck": 0, "sites": {}, "lines": [], "said": 0,
        }  # fmt: skip

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """A new part, or one that goes on. Bytes and scores come from the record, so that nothing counts twice."""
        before, self.begun = self.view["sites"], done - 1
        self.view |= {"part": part, "rounds": rounds, "round": done, "dice": None, "best_round": None}
        self.view |= {"best_dice": None, "stuck": 0, "sites": {}}
        for site in dict.fromkeys((*sites, *before)):
            self._set(site, "waiting" if site in sites else "left out")
            if before.get(site, {}).get("status") in _TROUBLE:
                self._site(site).update({k: v for k, v in before[site].items() if k in ("status", "since", "reason")})
        for event in self.folder.events():
            if event["part"] != part:
                self._count(event)
            elif event["round"] < done:
                self._take(event)
        if done:
            self._say(f"goes on after round {done} of {rounds}")
        self._changed()

    def on_rollback(self, done: int) -> None:
        """Rounds were taken back; the record has dropped them already."""
        sites = [site for site, entry in self.view["sites"].items() if entry["status"] != "left out"]
        self.on_start(self.view["part"], sites, self.view["rounds"], done)

    def on_status(self, round_number: int, site: str, status: str) -> None:
        """A site's status changed. In the first news of a round, those who have not been asked to work yet rest."""
        if round_number > self.begun:
            self.begun = round_number
            for other, entry in self.view["sites"].items():
                if entry["status"] in ("done", "waiting"):
                    self._set(other, "resting")
        if round_number < 0 and status == "done":  # it has said what it is, and done nothing yet
            status = "ready"
        # Sites line up at once, before the first of them works: a view in between would show half a line.
        if self._set(site, status) and status != "waiting":
            self._changed()

    def on_site(self, round_number: int, site: str) -> None:
        """An update was accepted, so that earlier problems are over."""
        gone = self._site(site).pop("reason", None)
        self.on_status(round_number, site, "done")
        if gone:
            self._changed()

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:  # noqa: ARG002
        """A site failed; the reason stays until an update of it is accepted."""
        status = self._site(site)["status"]
        if reason.startswith("update refused"):
            status = "refused"
        elif status not in _TROUBLE:
            status = "failed" if "failed" in reason else "refused"
        self._set(site, status)
        self._site(site)["reason"] = reason
        self._say(f"round {round_number + 1}: {site} {reason}" if round_number >= 0 else f"{site} {reason}")
        self._changed()

    def on_round(self, event: dict[str, Any]) -> None:
        """The numbers of a round."""
        self._take(event)
        for warning in event["warnings"]:
            self._say(f"round {event['round'] + 1}: {warning}")
        self._changed()

    def on_message(self, text: str) -> None:
        """Something worth a line."""
        self._say(text)
        self._changed()

    def on_result(self, summary: dict[str, Any]) -> None:
        """The run is over."""
        self.view |= {"finished": True, "average": summary["average"]}
        self._changed()

    def _take(self, event: dict[str, Any]) -> None:
        validation, number = event["validation"], event["round"] + 1
        self.view |= {"round": number, "seconds": event["seconds"]["training"] + event["seconds"]["validation"]}
        self.view["stuck"] = event.get("stuck", 0)  # runs of earlier versions did not say
        if validation["dice"] is not None:  # not every round validates
            self.view["dice"] = validation["dice"]
        best = event["best_round"]
        if best is not None and best + 1 != self.view["best_round"]:
            # Elsewhere the best round counts from 0; here people read it.
            self.view |= {"best_round": best + 1, "best_dice": validation["dice"] if best + 1 == number else None}
        for site, losses in event["losses"].items():
            total = nan if None in losses.values() else sum(losses.values())
            self._site(site)["loss"] = total if isfinite(total) else None
        for site, dice in validation["sites"].items():
            self._site(site)["dice"] = dice
        for entry in self.view["sites"].values():
            entry.pop("stuck", None)
        for site, count in event.get("stuck_sites", {}).items():
            self._site(site)["stuck"] = count
        self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        for way in ("bytes_up", "bytes_down"):
            for site, count in event[way].items():
                self._site(site)[way] += count

    def _site(self, site: str) -> dict[str, Any]:
        entry: dict[str, Any] = self.view["sites"].setdefault(
            site, {"status": "left out", "since": time.time(), "bytes_up": 0, "bytes_down": 0}
        )
        return entry

    def _set(self, site: str, status: str) -> bool:
        """Whether that is news."""
        entry = self._site(site)
        if entry["status"] == status:
            return False
        entry |= {"status": status, "since": time.time()}
        return True

    def _say(self, text: str) -> None:
        self.view["lines"] = [*self.view["lines"][1 - _LINES :], text]
        self.view["said"] += 1

    def _changed(self) -> None:
        """The view is another."""


class Live(LiveView):
    """Rewrites ``live.json`` whenever something happens. As a context it also says that a run ended with an error."""

    def __init__(self, folder: RunFolder, method: str, federation: str, engine: str) -> None:
        super().__init__(folder, method, federation, engine)
        self.path = folder.path / "live.json"
        self._changed()  # what an earlier start left is no longer so

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        lines = str(error).splitlines() or [""]
        words = lines[0] if isinstance(error, PolyclinicError) else f"{type(error).__name__}: {lines[0]}"
        # Ctrl-C and SIGTERM are no faults.
        self.view["stopped"] = words if isinstance(error, Exception) else "interrupted"
        self._changed()

    def _changed(self) -> None:
        """Whole or not at all, but without waiting for the disk: many sites mean many news.

        A view that cannot be written is no reason to end a run; the record, written next, would say why.
        """
        self.view["updated"] = time.time()
        temporary = self.path.with_name(f".live.json.{os.getpid()}.part")
        with suppress(OSError):
            temporary.write_text(json.dumps(self.view), encoding="utf-8")
            temporary.replace(self.path)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def recorded(folder: RunFolder) -> dict[str, Any]:
    """The view of a run without ``live.json``, from its record: it knows finished rounds, and not who is at work."""
    try:
        recipe = tomllib.loads(folder.recipe_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolyclinicError(f"{folder.recipe_file}: cannot be read ({error}); restore it from a copy.") from error
    events, summary = folder.events(), folder.summary()
    federation = Path(str(recipe.get("federation", ""))).name
    about = {"method": recipe.get("method", "fedavg"), "federation": federation, "engine": "inprocess"}
    about["engine"] = recipe.get("engine", {}).get("name", "inprocess")
    about |= {key: summary[key] for key in about if summary and key in summary}
    live = LiveView(folder, **about)
    rounds = summary["rounds"] if summary else recipe.get("training", {}).get("rounds", 0)
    if events:
        last = events[-1]
        sites = sorted({site for event in events if event["part"] == last["part"] for site in event["sites"]})
        live.on_start(last["part"], sites, rounds, last["round"] + 1)
        live.view |= {"lines": [], "said": 0}
        for site, entry in live.view["sites"].items():
            entry |= {"status": "done" if entry["status"] == "waiting" else entry["status"], "since": None}
            if site in last["refused"]:
                entry |= {"status": "failed", "reason": last["refused"][site]}
    times = [file.stat().st_mtime for file in (folder.recipe_file, folder.events_file) if file.exists()]
    live.view |= {"started": times[0], "updated": times[-1], "rounds": rounds}
    if summary:
        live.on_result(summary)
        live.view["updated"] = folder.summary_file.stat().st_mtime
    live.view["note"] = "There is no live.json here; this is the record, up to the last finished round."
    return live.view
