"""Progress on the screen: a bar in a terminal, a line a round elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from polyclinic.federation.observer import Observer, when
from polyclinic.federation.stuck import stuck_briefly

_BETWEEN_LINES = 20.0  # seconds between two lines about the preparation of images


class ScreenObserver(Observer):
    """Shows rounds, the site at work and the validation Dice. Writes to stderr, so that stdout stays for results."""

    def __init__(self, title: str) -> None:
        self.title = self.name = title
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.rounds = 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.preparation: TaskID | None = None
        self.last_line = time.monotonic()
        self.dice = ""

    def __enter__(self) -> ScreenObserver:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def on_start(self, part: str, sites: Sequence[str], rounds: int, done: int) -> None:
        """A new bar for every part of the protocol."""
        self.rounds, self.dice = rounds, ""
        self.name = name = self.title if part == "all" else f"{self.title} {part}"
        if done:
            self.console.print(f"{name}: resumed after round {done} of {rounds}")
        self.task = self.bar.add_task(
            name, total=rounds, completed=done, note=f"{len(sites)} site{'s' if len(sites) > 1 else ''}"
        )

    def on_preparation(self, done: int, total: int) -> None:
        """A bar of its own until all images are prepared; elsewhere a line now and then."""
        if self.preparation is None:
            self.preparation = self.bar.add_task("preparing images", total=total, note="")
        self.bar.update(self.preparation, completed=done, total=total, visible=done < total)
        if not self.console.is_terminal and time.monotonic() - self.last_line > _BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.console.print(f"{self.title}: prepared {done} of {total} images", markup=False)

    def on_site(self, round_number: int, site: str) -> None:  # noqa: ARG002
        """Name the site that has just finished."""
        if self.task is not None:
            self.bar.update(self.task, note=f"{self.dice}{site}")

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:  # noqa: ARG002
        """A line that stays."""
        self.console.print(f"{when(round_number)}: site {site} {reason}", style="yellow", markup=False)

    def on_round(self, event: dict[str, Any]) -> None:
        """Advance, and show the validation Dice when there is one."""
        dice = event["validation"]["dice"]
        stuck = stuck_briefly(event.get("stuck"), event.get("stuck_sites", ()))
        self.dice = f"val Dice {dice:.3f} {f'({stuck}) ' if stuck else ''}" if dice is not None else self.dice
        if self.task is not None:
            self.bar.update(self.task, advance=1, note=self.dice)
        if not self.console.is_terminal:
            self.console.print(
                f"{self.name}: round {event['round'] + 1}/{self.rounds} {self.dice}"
                f"({event['seconds']['training'] + event['seconds']['validation']:.1f} s)",
                markup=False,
            )
        for warning in event["warnings"]:
            self.console.print(f"round {event['round'] + 1}: {warning}", style="yellow", markup=False)

    def on_rollback(self, done: int) -> None:
        """Rounds were taken back."""
        if self.task is not None:
            self.bar.update(self.task, completed=done)

    def on_message(self, text: str) -> None:
        """A line that stays."""
        self.console.print(f"{self.title}: {text}", markup=False)
