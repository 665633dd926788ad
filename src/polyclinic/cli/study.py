"""``polyclinic study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import (
    JobsOption,
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
        typer.Option("--vary", metavar="KEY=V1,V2,...", help="A key and its values, such as data.labelled=5,10."),
    ],
    methods: MethodsOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the study; started again, it goes on.")],
    seeds: SeedsOption = "3",
    overrides: SetOption = None,
    metric: MetricOption = "dice",
    jobs: JobsOption = None,
) -> None:
    """Compare methods for several values of one key, such as the number of labels: a table and a picture."""
    from polyclinic.cli.grid_screen import GridScreen
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.runs.grid_plan import parse_seeds, split_expressions

    if len(vary) > 1:
        raise PolyclinicError("--vary: a study varies one key; start one study for each, with folders of their own.")
    loaded = load_recipe(recipe, overrides or [])
    require_federation(loaded, recipe)
    with quick_imports():
        from polyclinic.api import compare_study
        from polyclinic.runs.study import plan_study

    numbers = parse_seeds(seeds, loaded.seed)
    plan = plan_study(recipe, tuple(overrides or ()), vary[0], split_expressions(methods), numbers, out)
    with interruptible(), GridScreen() as screen:
        table = compare_study(plan, metric, jobs, screen)
    table.show()
    typer.echo(f"Table: {out / 'study.md'} and {out / 'study.csv'}; picture: {out / 'study.png'}")
