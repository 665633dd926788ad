"""``polyclinic study``."""

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


def study(
    recipe: RecipeArgument,
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="KEY=V1,V2,...",
            help="A key and its values, such as data.labelled=5,10. Given twice, all pairs are compared.",
        ),
    ],
    methods: MethodsOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the study; started again, it goes on.")],
    seeds: SeedsOption = "3",
    overrides: SetOption = None,
    metric: MetricOption = "dice",
    jobs: JobsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare methods for several values of one key, such as the number of labels, or of two: tables and pictures."""
    from polyclinic.cli.grid_screen import GridScreen
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.runs.grid_plan import parse_seeds, split_expressions

    loaded = load_recipe(recipe, overrides or [])
    require_federation(loaded, recipe)
    with quick_imports():
        from polyclinic.api import compare_study
        from polyclinic.runs.study import plan_study

    numbers = parse_seeds(seeds, loaded.seed)
    plan = plan_study(recipe, tuple(overrides or ()), vary, split_expressions(methods), numbers, out)
    with interruptible(), GridScreen() as screen:
        table = compare_study(plan, metric, jobs, screen)
    if json_output:
        typer.echo(json.dumps(table.to_json(), indent=2))
        return
    table.show()
    typer.echo(f"Table: {out / 'study.md'} and {out / 'study.csv'}; picture: {out / 'study.png'}, .pdf and .svg")
