"""What ``import polyclinic`` offers: one run, a comparison, an ablation, a study, masks of new images, a report.

The command line calls the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import polyclinic.deploy.local_federation  # noqa: F401 (registers the engines flower and simulation)
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe, require_federation
from polyclinic.report.ablation import AblationTable, ablation_of
from polyclinic.report.make_report import report
from polyclinic.report.overview import write_tables
from polyclinic.report.statistics import check_reference
from polyclinic.report.study import StudyTable, study_of
from polyclinic.report.tables import Comparison
from polyclinic.runs.ablation import AblationPlan, plan_ablation, run_ablation
from polyclinic.runs.grid import run_grid
from polyclinic.runs.grid_failure import GridFailedError
from polyclinic.runs.grid_plan import GridPlan, parse_seeds, plan_grid
from polyclinic.runs.grid_progress import GridObserver
from polyclinic.runs.predict import predict
from polyclinic.runs.start_run import RunResult, run
from polyclinic.runs.study import StudyPlan, plan_study, run_study

__all__ = [
    "RunResult", "ablate", "compare", "compare_ablation", "compare_grid", "compare_study", "predict", "report", "run",
    "study",
]  # fmt: skip


def compare(
    recipe: Recipe | str | Path,
    methods: Iterable[str],
    *,
    out: str | Path,
    seeds: int | Iterable[int] = 3,
    overrides: Iterable[str] = (),
    metric: str = "dice",
    jobs: int | None = None,
    reference: str | None = None,
) -> Comparison:
    """Run methods x seeds and compare them with ``reference`` or the first; a grid that was interrupted goes on.

    Runs go side by side in processes of their own, as many as the machine has room for, or ``jobs``; with ``jobs=1``
    they go one after another in this process.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    numbers = parse_seeds(str(seeds), loaded.seed) if isinstance(seeds, int) else tuple(seeds)
    plan = plan_grid(loaded, tuple(methods), numbers, Path(out))
    return compare_grid(plan, metric=metric, jobs=jobs, reference=reference)


def compare_grid(
    plan: GridPlan,
    *,
    metric: str = "dice",
    jobs: int | None = None,
    observer: GridObserver | None = None,
    reference: str | None = None,
) -> Comparison:
    """Run what is missing of a grid, then write its tables and statistics, all metrics in each file.

    If runs fail, the tables hold the others, and the error names those that failed.
    """
    check_reference(plan.methods, reference)
    try:
        run_grid(plan, metric=metric, jobs=jobs, observer=observer)
    except GridFailedError:
        _write_what_is_there(plan, metric, reference)
        raise
    return write_tables(plan.out, metric, plan.recipe.evaluation.metrics, reference=reference)


def ablate(
    recipe: Recipe | str | Path,
    method: str | None = None,
    *,
    out: str | Path,
    components: Iterable[str] | None = None,
    seeds: int | Iterable[int] = 3,
    overrides: Iterable[str] = (),
    metric: str = "dice",
    jobs: int | None = None,
) -> AblationTable:
    """Compare every subset of a method's components, or of the named ones; by default of the recipe's method.

    Runs that ``out`` holds already, of an earlier ablation or comparison, are kept. ``jobs`` is as in :func:`compare`.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    if not isinstance(recipe, Recipe):
        require_federation(loaded, recipe)
    numbers = parse_seeds(str(seeds), loaded.seed) if isinstance(seeds, int) else tuple(seeds)
    named = None if components is None else tuple(components)
    plan = plan_ablation(loaded, method or loaded.method, named, numbers, Path(out))
    return compare_ablation(plan, metric, jobs)


def compare_ablation(
    plan: AblationPlan, metric: str = "dice", jobs: int | None = None, observer: GridObserver | None = None
) -> AblationTable:
    """Run what is missing of an ablation; write the tables of its grid and ``ablation.md``, ``.csv`` and ``.tex``.

    If runs fail, the tables hold the others.
    """
    try:
        run_ablation(plan, metric, jobs, observer)
    except GridFailedError:
        if _write_what_is_there(plan.listed, metric):
            ablation_of(plan.out, metric, partial=True).write(plan.out)
        raise
    _write_what_is_there(plan.listed, metric)
    table = ablation_of(plan.out, metric)
    table.write(plan.out)
    return table


def study(
    recipe: str | Path,
    vary: str | Sequence[str],
    methods: Iterable[str],
    *,
    out: str | Path,
    seeds: int | Iterable[int] = 3,
    overrides: Iterable[str] = (),
    metric: str = "dice",
    jobs: int | None = None,
) -> StudyTable:
    """Compare methods for every value of ``vary``, such as ``data.labelled=5,10,20``; what was interrupted goes on.

    ``vary`` may be a list of two, whose pairs of values are then compared. ``jobs`` is as in :func:`compare`; the runs
    of all values share the machine.
    """
    overrides = tuple(overrides)
    first = load_recipe(recipe, overrides)
    require_federation(first, recipe)
    numbers = parse_seeds(str(seeds), first.seed) if isinstance(seeds, int) else tuple(seeds)
    return compare_study(plan_study(recipe, overrides, vary, tuple(methods), numbers, Path(out)), metric, jobs)


def compare_study(
    plan: StudyPlan, metric: str = "dice", jobs: int | None = None, observer: GridObserver | None = None
) -> StudyTable:
    """Run what is missing of a study and write the tables of its grids, and ``study.md``, ``.csv`` and pictures.

    A grid's table is written as soon as its runs are done. If runs fail, the tables hold the others.
    """
    try:
        with closing(run_study(plan, metric, jobs, observer)) as grids:
            for grid in grids:
                write_tables(grid.out, metric, grid.recipe.evaluation.metrics)
    except GridFailedError:
        written = [_write_what_is_there(grid, metric) for grid in plan.in_order]
        if any(written):
            study_of(plan.out, metric, partial=True).write(plan.out)
        raise
    table = study_of(plan.out, metric)
    table.write(plan.out)
    return table


def _write_what_is_there(plan: GridPlan, metric: str, reference: str | None = None) -> bool:
    """The tables of a grid in which runs are missing; whether there is any to show."""
    if not any((cell.folder / "summary.json").exists() for cell in plan.cells):
        return False
    write_tables(plan.out, metric, plan.recipe.evaluation.metrics, partial=True, reference=reference)
    return True
