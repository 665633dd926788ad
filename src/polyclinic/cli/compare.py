"""``polyclinic compare``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import RecipeArgument, SetOption


def compare(
    recipe: RecipeArgument,
    methods: Annotated[str, typer.Option("--methods", help="Methods or expressions, separated by commas.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the grid; started again, it goes on.")],
    seeds: Annotated[
        str,
        typer.Option("--seeds", help="How many seeds (3: the recipe's and the next two), or a list such as 0,7,42."),
    ] = "3",
    overrides: SetOption = None,
    metric: Annotated[str, typer.Option("--metric", help="The metric of the table.")] = "dice",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, each in its own process.")] = 1,
) -> None:
    """Run methods x seeds and put them in one table; done runs are kept, interrupted ones go on."""
    from polyclinic.cli.progress import ScreenObserver
    from polyclinic.recipe_files import load_recipe, require_federation
    from polyclinic.runs.plan import parse_seeds, plan_grid, split_expressions

    loaded = load_recipe(recipe, overrides or [])
    require_federation(loaded, recipe)
    plan = plan_grid(loaded, split_expressions(methods), parse_seeds(seeds, loaded.seed), out)
    from polyclinic.report.tables import print_comparison
    from polyclinic.runs.grid import run_grid

    try:
        table = run_grid(plan, metric=metric, jobs=jobs, screen=ScreenObserver)
    except KeyboardInterrupt:
        typer.echo(
            f"Interrupted. Finished runs are kept; go on with:\n  {shlex.join(['polyclinic', *sys.argv[1:]])}", err=True
        )
        raise typer.Exit(130) from None
    print_comparison(table)
    typer.echo(f"Table: {out / 'table.md'} and {out / 'table.csv'}; run folders: {out}")
