"""``polyclinic compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import (
    JobsOption,
    JsonOption,
    MethodsOption,
    MetricOption,
    RecipeArgument,
    SeedsOption,
    SetOption,
    interruptible,
)
from polyclinic.core.quick_imports import quick_imports


def compare(
    recipe: RecipeArgument,
    methods: MethodsOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the grid; started again, it goes on.")],
    seeds: SeedsOption = "3",
    overrides: SetOption = None,
    metric: MetricOption = "dice",
    jobs: JobsOption = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="METHOD", help="Compare the others with this one. [default: the first]"),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Run methods x seeds and put them in one table, with statistics; done runs are kept, interrupted ones go on."""
    from polyclinic.cli.grid_screen import GridScreen
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.runs.grid_plan import parse_seeds, plan_grid, split_expressions

    loaded = load_recipe(recipe, overrides or [])
    require_federation(loaded, recipe)
    plan = plan_grid(loaded, split_expressions(methods), parse_seeds(seeds, loaded.seed), out)
    with quick_imports():
        from polyclinic.api import compare_grid
        from polyclinic.report.overview import all_metrics, comparison_json, print_overview
        from polyclinic.report.tables import print_comparison

    with interruptible(), GridScreen() as screen:
        table = compare_grid(plan, metric=metric, jobs=jobs, observer=screen, reference=reference)
    metrics = loaded.evaluation.metrics
    if json_output:
        typer.echo(json.dumps(comparison_json(out, metric, metrics, reference), indent=2))
        return
    print_comparison(table)
    if len(metrics) > 1:
        typer.echo()
        print_overview(all_metrics(out, metric, metrics))
    typer.echo(f"Tables (.md, .csv, .tex) and statistics (.csv, .json) are in {out}, beside the run folders.")
