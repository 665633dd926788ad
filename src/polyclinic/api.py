"""What ``import polyclinic`` offers: one run, a comparison, a study. The command line calls the same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polyclinic.deploy.local_federation  # noqa: F401 (registers the engines flower and simulation)
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe, require_federation
from polyclinic.report.overview import write_tables
from polyclinic.report.study import StudyTable, study_of
from polyclinic.report.tables import Comparison
from polyclinic.runs.grid import run_grid
from polyclinic.runs.grid_plan import GridPlan, parse_seeds, plan_grid
from polyclinic.runs.start_run import RunResult, run
from polyclinic.runs.study import StudyPlan, plan_study, run_study

__all__ = ["RunResult", "compare", "compare_grid", "compare_study", "run", "study"]


def compare(
    recipe: Recipe | str | Path,
    methods: Iterable[str],
    *,
    out: str | Path,
    seeds: int | Iterable[int] = 3,
    overrides: Iterable[str] = (),
    metric: str = "dice",
    jobs: int = 1,
) -> Comparison:
    """Run methods x seeds and compare them; a grid that was interrupted goes on."""
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    numbers = parse_seeds(str(seeds), loaded.seed) if isinstance(seeds, int) else tuple(seeds)
    return compare_grid(plan_grid(loaded, tuple(methods), numbers, Path(out)), metric=metric, jobs=jobs)


def compare_grid(
    plan: GridPlan, *, metric: str = "dice", jobs: int = 1, screen: Callable[[str], Any] | None = None
) -> Comparison:
    """Run what is missing of a grid, then write ``table.md`` and ``table.csv``, all metrics in both."""
    run_grid(plan, metric=metric, jobs=jobs, screen=screen)
    return write_tables(plan.out, metric, plan.recipe.evaluation.metrics)


def study(
    recipe: str | Path,
    vary: str,
    methods: Iterable[str],
    *,
    out: str | Path,
    seeds: int | Iterable[int] = 3,
    overrides: Iterable[str] = (),
    metric: str = "dice",
    jobs: int = 1,
) -> StudyTable:
    """Compare methods for every value of ``vary``, such as ``data.labelled=5,10,20``; what was interrupted goes on."""
    overrides = tuple(overrides)
    first = load_recipe(recipe, overrides)
    require_federation(first, recipe)
    numbers = parse_seeds(str(seeds), first.seed) if isinstance(seeds, int) else tuple(seeds)
    return compare_study(plan_study(recipe, overrides, vary, tuple(methods), numbers, Path(out)), metric, jobs)


def compare_study(
    plan: StudyPlan, metric: str = "dice", jobs: int = 1, screen: Callable[[str], Any] | None = None
) -> StudyTable:
    """Run what is missing of a study, then write the tables of its grids and ``study.md``, ``.csv`` and ``.png``."""
    for grid in run_study(plan, metric, jobs, screen):
        write_tables(grid.out, metric, grid.recipe.evaluation.metrics)
    table = study_of(plan.out, metric)
    table.write(plan.out)
    return table
