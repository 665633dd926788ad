"""``polyclinic ablate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import (
    JobsOption,
    JsonOption,
    MetricOption,
    RecipeArgument,
    SeedsOption,
    SetOption,
    interruptible,
)
from polyclinic.core.quick_imports import quick_imports


def ablate(
    recipe: RecipeArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the grid; started again, or after a compare, it goes on.")
    ],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A method or an expression. [default: the recipe's]")
    ] = None,
    components: Annotated[
        str | None,
        typer.Option("--components", help="Leave out these alone, such as cse,afa. [default: all of the method's]"),
    ] = None,
    seeds: SeedsOption = "3",
    overrides: SetOption = None,
    metric: MetricOption = "dice",
    jobs: JobsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run every subset of a method's components and put them in one table, as papers' ablation tables do.

    Runs that the folder has already, of an earlier ablate or of a compare with the same recipe, are kept.
    """
    from polyclinic.cli.grid_screen import GridScreen
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.runs.grid_plan import parse_seeds

    loaded = load_recipe(recipe, overrides or [], method=method)
    require_federation(loaded, recipe)
    with quick_imports():
        from polyclinic.api import compare_ablation
        from polyclinic.runs.ablation import plan_ablation, split_components

    named = None if components is None else split_components(components)
    plan = plan_ablation(loaded, loaded.method, named, parse_seeds(seeds, loaded.seed), out)
    with interruptible(), GridScreen() as screen:
        table = compare_ablation(plan, metric, jobs, screen)
    if json_output:
        typer.echo(json.dumps(table.to_json(), indent=2))
        return
    table.show()
    typer.echo(f"Table: {out / 'ablation.md'}, .csv and .tex; run folders: {out}")
