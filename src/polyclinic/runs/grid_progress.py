"""How far the runs of a grid are, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Literal

from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_schedule import seconds_left
from polyclinic.runs.grid_view import RunView, read_view, recorded_seconds

Status = Literal["waiting", "running", "finished", "failed"]


@dataclass
class RunProgress:
    """One run of the grid. Times are in seconds, by the clock of this machine."""

    run: GridRun
    view: RunView
    status: Status = "waiting"
    started: float = 0.0
    done_before: int = 0
    """Rounds that an earlier start had done already."""
    seconds: float | None = None
    problem: str = ""

    @property
    def pace(self) -> float | None:
        """Seconds a round since it started; ``None`` before the first one is done."""
        done = self.view.done - self.done_before
        return (self.view.updated - self.started) / done if done > 0 and self.view.updated > self.started else None


@dataclass
class GridProgress:
    """All runs of a grid, or of all grids of a study, by folder, and what can be said of the rest."""

    planned: Sequence[GridRun]
    side_by_side: int = 1
    _seconds_a_round: dict[str, list[float]] = field(default_factory=dict)
    """Of finished runs, by method."""

    def __post_init__(self) -> None:
        self.runs = {run.folder: RunProgress(run, read_view(run)) for run in self.planned}

    def of(self, *statuses: Status) -> list[RunProgress]:
        """The runs of these statuses, in their order."""
        return [progress for progress in self.runs.values() if progress.status in statuses]

    def refresh(self) -> None:
        """Look into the folders of running runs."""
        for progress in self.of("running"):
            progress.view = read_view(progress.run)

    def was_finished(self, run: GridRun) -> None:
        """A run was done by an earlier start; its summary says how long that took."""
        progress = self.runs[run.folder]
        progress.status, progress.view = "finished", progress.view.finished()
        self._learn(run.method, recorded_seconds(run), progress.view.rounds)

    def start(self, run: GridRun) -> RunProgress:
        """A run starts now."""
        progress = self.runs[run.folder]
        progress.status, progress.started, progress.done_before = "running", time.time(), progress.view.done
        return progress

    def finish(self, run: GridRun) -> RunProgress:
        """A run has just ended well."""
        progress = self.runs[run.folder]
        progress.status, progress.seconds = "finished", time.time() - progress.started
        progress.view = read_view(run).finished()
        self._learn(run.method, progress.seconds, progress.view.rounds - progress.done_before)
        return progress

    def fail(self, run: GridRun, problem: str) -> RunProgress:
        """A run has just failed."""
        progress = self.runs[run.folder]
        progress.status, progress.problem = "failed", problem
        return progress

    def rounds(self) -> tuple[int, int]:
        """Rounds that are done and rounds in all, without those that will not be done: those of failed runs."""
        others = self.of("waiting", "running", "finished")
        return sum(progress.view.done for progress in others), sum(map(self._rounds, others))

    def sites(self) -> int:
        """How many sites the runs have, as far as one has said so; 0 before."""
        return max((progress.view.sites for progress in self.runs.values()), default=0)

    def expected_seconds(self, progress: RunProgress) -> float | None:
        """What a run takes that starts now; from runs of its method, else from all others."""
        running: dict[str, list[float]] = {}
        for other in self.of("running"):
            if other.pace is not None:
                running.setdefault(other.run.method, []).append(other.pace)
        known = running | self._seconds_a_round
        pace = known.get(progress.run.method) or [mean(seconds) for seconds in known.values()]
        return mean(pace) * (self._rounds(progress) - progress.view.done) if pace else None

    def run_seconds_left(self, progress: RunProgress) -> float | None:
        """What is left of a run that goes on now."""
        view, now = progress.view, time.time()
        if progress.pace is not None:
            return max(0.0, progress.pace * (view.rounds - view.done) - (now - view.updated))
        whole = self.expected_seconds(progress)
        return None if whole is None else max(0.0, whole - (now - progress.started))

    def seconds_left(self) -> float | None:
        """What is left of everything; ``None`` as long as nothing is known."""
        running, waiting = self.of("running"), self.of("waiting")
        left = [seconds for run in running if (seconds := self.run_seconds_left(run)) is not None]
        expected = [seconds for run in waiting if (seconds := self.expected_seconds(run)) is not None]
        if len(left) + len(expected) < len(running) + len(waiting):
            return None
        return seconds_left(left, expected, self.side_by_side)

    def _rounds(self, progress: RunProgress) -> int:
        """Rounds of a run in all; how many parts a protocol has, those that have begun tell for those that have not."""
        kind = progress.run.recipe.protocol.kind
        if progress.status != "waiting" or kind != "leave-one-site-out":
            return progress.view.rounds
        parts = max(other.view.parts for other in self.runs.values() if other.run.recipe.protocol.kind == kind)
        return progress.run.recipe.training.rounds * parts

    def _learn(self, method: str, seconds: float | None, rounds: int) -> None:
        if seconds is not None and rounds > 0:
            self._seconds_a_round.setdefault(method, []).append(seconds / rounds)


class GridObserver:
    """Is told how a grid goes, and does nothing."""

    def on_plan(self, progress: GridProgress) -> None:
        """What is to do is known; nothing has started yet."""

    def on_started(self, progress: GridProgress, run: RunProgress) -> None:
        """A run has started."""

    def on_ended(self, progress: GridProgress, run: RunProgress) -> None:
        """A run has finished or failed."""

    def on_tick(self, progress: GridProgress) -> None:
        """Called often while runs go on."""

    def on_message(self, text: str) -> None:
        """Something worth a line."""
