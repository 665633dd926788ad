"""Progress of a whole grid on the screen: bars in a terminal, a line for each run that starts or ends elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from polyclinic.core.wording import counted
from polyclinic.report.live_screen import duration, plain
from polyclinic.runs.grid_progress import GridObserver, GridProgress, RunProgress


class GridScreen(GridObserver):
    """One bar over all rounds of all runs, and one for each run that goes on. Writes to stderr; stdout has results."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            # No thread that draws: a run in this process may fork, and a thread may hold a lock at that moment.
            auto_refresh=False,
            disable=not self.console.is_terminal,
        )
        self.all: TaskID | None = None
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> GridScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def on_plan(self, progress: GridProgress) -> None:
        """Say what is to do."""
        self._say(plan_text(progress))
        self.bars.start()
        done, rounds = progress.rounds()
        self.all = self.bars.add_task("rounds of all runs", total=rounds, completed=done, note="")
        self.bars.refresh()

    def on_started(self, progress: GridProgress, run: RunProgress) -> None:
        """A bar of its own, or a line."""
        view = run.view
        self.tasks[run.run.title] = self.bars.add_task(
            plain(run.run.title), total=view.rounds, completed=view.done, note="starting"
        )
        if not self.console.is_terminal:
            self._say(f"{run.run.title}: started")
        self.on_tick(progress)

    def on_ended(self, progress: GridProgress, run: RunProgress) -> None:
        """A line that stays."""
        self.bars.remove_task(self.tasks.pop(run.run.title))
        self._say(ended_text(progress, run), "red" if run.status == "failed" else "")
        self.on_tick(progress)

    def on_tick(self, progress: GridProgress) -> None:
        """Where everything stands now."""
        if self.all is None or not self.console.is_terminal:
            return
        done, rounds = progress.rounds()
        self.bars.update(self.all, total=rounds, completed=done, note=left_text(progress))
        for run in progress.of("running"):
            view = run.view
            self.bars.update(self.tasks[run.run.title], total=view.rounds, completed=view.done, note=run_text(run))
        self.bars.refresh()

    def on_message(self, text: str) -> None:
        """A line that stays."""
        self._say(text)

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(plain(text), style=style, markup=False)


def plan_text(progress: GridProgress) -> str:
    """How many runs there are, how many are done, and how many go side by side."""
    waiting, finished = len(progress.of("waiting")), len(progress.of("finished"))
    done = f", {finished} done before" if finished else ""
    ways = f"{progress.side_by_side} side by side" if progress.side_by_side > 1 else "one after another"
    return f"{counted(waiting, 'run')} to do{done}{f', {ways}' if waiting > 1 else ''}"


def run_text(run: RunProgress) -> str:
    """What there is to say of a run that goes on, beside its rounds."""
    if run.view.done >= run.view.rounds:
        return "testing"
    if run.view.dice is None:
        return "" if run.view.done else "starting"
    return f"val Dice {run.view.dice:.3f}{_stuck(run)}"


def left_text(progress: GridProgress) -> str:
    """How long it still takes, if that can be said."""
    seconds = progress.seconds_left()
    return "" if seconds is None else f"about {duration(seconds)} left"


def ended_text(progress: GridProgress, run: RunProgress) -> str:
    """How a run ended, how many have, and how long the rest takes."""
    ended, total = len(progress.of("finished", "failed")), len(progress.runs)
    rest = left_text(progress) if ended < total else ""
    count = f"{ended} of {total}{f', {rest}' if rest else ''}"
    if run.status == "failed":
        return f"{run.run.title}: failed: {run.problem.rstrip('.')}; see {run.run.log} ({count})"
    dice = "" if run.view.dice is None else f", val Dice {run.view.dice:.3f}{_stuck(run)}"
    return f"{run.run.title}: finished in {duration(run.seconds or 0)}{dice} ({count})"


def _stuck(run: RunProgress) -> str:
    return f", {run.view.stuck}" if run.view.stuck else ""
