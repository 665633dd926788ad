"""The observer that writes ``server.log``, what a coordinator reads about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.core.log_file import LogFile
from polyclinic.federation.observer import Observer, when


class ServerLog(Observer):
    """``server.log``: one readable line for everything that a coordinator wants to know later."""

    def __init__(self, path: Path) -> None:
        self.log = LogFile(path)
        self.rounds = 0

    def on_start(self, part: str, sites: Any, rounds: int, done: int) -> None:
        """The sites of a part."""
        self.rounds = rounds
        self.log.write(f"[{part}] {len(sites)} sites ({', '.join(sites)}), {done} of {rounds} rounds done")

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:  # noqa: ARG002
        """Who gave nothing, and why."""
        self.log.write(f"{when(round_number)}: {site} {reason}")

    def on_round(self, event: dict[str, Any]) -> None:
        """A round in a line."""
        dice = event["validation"]["dice"]
        shown = f", validation Dice {dice:.4f}" if dice is not None else ""
        seconds = event["seconds"]["training"] + event["seconds"]["validation"]
        came = f"{len(event['samples'])} of {len(event['sites'])} sites"
        self.log.write(f"round {event['round'] + 1}/{self.rounds}: {came}{shown}, {seconds:.1f} s")
        for warning in event["warnings"]:
            self.log.write(f"round {event['round'] + 1}: {warning}")

    def on_message(self, text: str) -> None:
        """Something worth a line."""
        self.log.write(text)

    def on_result(self, summary: dict[str, Any]) -> None:
        """The end."""
        shown = ", ".join(f"{name} {value:.4f}" for name, value in summary["average"].items() if value is not None)
        self.log.write(f"finished: average over sites: {shown}")
