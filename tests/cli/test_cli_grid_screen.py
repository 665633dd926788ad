"""Progress of a grid: bars in a terminal, few lines elsewhere, from the files of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grid_support import Clock, clock, grid_run, recipe_with, rounds_done  # noqa: F401 (a fixture)
from polyclinic.cli.grid_screen import GridScreen, ended_text, left_text, plan_text, run_text
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_progress import GridProgress

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def runs(tmp_path: Path) -> list[GridRun]:
    return [grid_run(tmp_path, method, 0, recipe_with(training={"rounds": 10})) for method in ("fedavg", "fedbn")]


def do_rounds(progress: GridProgress, run: GridRun, number: int, dice: float | None) -> None:
    """The run has begun 40 s ago and has done so many rounds since."""
    rounds_done(run, number, Clock.now, dice)
    progress.runs[run.folder].started = Clock.now - 40
    progress.refresh()


def test_words_of_a_run_that_goes_on(runs: list[GridRun]) -> None:
    progress = GridProgress(runs)
    run = progress.start(runs[0])
    assert run_text(run) == "starting"
    do_rounds(progress, runs[0], 2, None)
    assert run_text(run) == ""
    do_rounds(progress, runs[0], 4, 0.81234)
    assert run_text(run) == "val Dice 0.812"
    run.view = replace(run.view, stuck="stuck at background")
    assert run_text(run) == "val Dice 0.812, stuck at background"
    do_rounds(progress, runs[0], 10, 0.9)
    assert run_text(run) == "testing"


def test_words_of_a_plan_and_of_the_time_left(runs: list[GridRun]) -> None:
    progress = GridProgress(runs, 2)
    assert plan_text(progress) == "2 runs to do, 2 side by side"
    assert left_text(progress) == ""
    progress.start(runs[0])
    do_rounds(progress, runs[0], 4, None)
    assert left_text(progress) == "about 1 min 40 s left", "10 s a round, side by side"
    progress.side_by_side = 1
    assert left_text(progress) == "about 2 min 40 s left", "60 s, then 100 s"
    progress.was_finished(runs[0])
    assert plan_text(progress) == "1 run to do, 1 done before"


def test_words_of_the_end(runs: list[GridRun]) -> None:
    progress = GridProgress(runs)
    progress.start(runs[0])
    do_rounds(progress, runs[0], 10, 0.75)
    assert ended_text(progress, progress.finish(runs[0])) == (
        "fedavg seed 0: finished in 40 s, val Dice 0.750 (1 of 2, about 40 s left)"
    )
    progress.start(runs[1])
    assert ended_text(progress, progress.fail(runs[1], "no room.")) == (
        f"fedbn seed 0: failed: no room; see {runs[1].log} (2 of 2)"
    )


def test_without_a_terminal_a_line_for_each_start_and_end(
    runs: list[GridRun], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = GridProgress(runs)
    with GridScreen() as screen:
        screen.on_message("[bold]the method 'mine'[/bold] \x1b[31mis known here only")
        screen.on_plan(progress)
        screen.on_started(progress, progress.start(runs[0]))
        for number in range(10):
            do_rounds(progress, runs[0], number, 0.5)
            screen.on_tick(progress)
        screen.on_ended(progress, progress.finish(runs[0]))
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "[bold]the method 'mine'[/bold]  [31mis known here only",
        "2 runs to do, one after another",
        "fedavg seed 0: started",
        "fedavg seed 0: finished in 40 s, val Dice 0.500 (1 of 2, about 40 s left)",
    ]


def test_a_terminal_has_a_bar_over_all_rounds_and_one_for_each_running_run(
    runs: list[GridRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = GridProgress(runs, 2)
    with GridScreen() as screen:
        screen.on_plan(progress)
        for run in runs:
            screen.on_started(progress, progress.start(run))
        do_rounds(progress, runs[0], 4, 0.5)
        screen.on_tick(progress)
        bars = [(task.description, task.completed, task.total, task.fields["note"]) for task in screen.bars.tasks]
        assert bars == [
            ("rounds of all runs", 4, 20, "about 1 min 40 s left"),
            ("fedavg seed 0", 4, 10, "val Dice 0.500"),
            ("fedbn seed 0", 0, 10, "starting"),
        ]
        screen.on_ended(progress, progress.finish(runs[0]))
        bars = [(task.description, task.completed, task.total, "") for task in screen.bars.tasks]
        assert bars == [("rounds of all runs", 10, 20, ""), ("fedbn seed 0", 0, 10, "")]
    written = capsys.readouterr()
    assert written.out == ""
    assert "fedavg seed 0: finished in 40 s" in written.err
