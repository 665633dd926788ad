"""What one must know of the training behind the scores: runs that found nothing, steps, and what still rose."""

from __future__ import annotations

from polyclinic.report.late_rise import late_rise_words
from polyclinic.report.optimiser_steps import mean_steps, steps_words
from polyclinic.report.page.results import Grid
from polyclinic.report.stuck_runs import stuck_line, stuck_words


def stuck_notice(grid: Grid) -> str:
    """A sentence about runs whose numbers say nothing about their method; empty where there are none."""
    if len(grid.runs) == 1:
        return stuck_line(grid.runs[0].summary or {})
    return stuck_words((f"{run.method} seed {run.seed}", run.summary or {}) for run in grid.finished)


def steps_note(grid: Grid) -> str:
    """How many optimiser steps stand behind the rows; empty where no run tells."""
    return steps_words(mean_steps((run.method, run.summary or {}) for run in grid.finished))


def late_rise_note(grid: Grid) -> str:
    """What was not trained out; empty where nothing still rose."""
    return late_rise_words((run.method, run.summary or {}) for run in grid.finished)
