"""``polyclinic explain``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from polyclinic.cli.options import JsonOption, PluginsOption, SetOption
from polyclinic.core.quick_imports import quick_imports


def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A method or an expression.")],
    recipe: Annotated[
        str, typer.Option("--recipe", "-r", help="The recipe whose network and federation the sizes are for.")
    ] = "demo-nuclei",
    overrides: SetOption = None,
    plugins: PluginsOption = False,
    json_output: JsonOption = False,
) -> None:
    """Say what a method does, its settings, and exactly which tensors leave a site in every round."""
    from polyclinic.recipe.files import load_recipe, require_federation

    loaded = load_recipe(recipe, overrides or [], method=method)
    require_federation(loaded, recipe)
    with quick_imports():
        from polyclinic.preview.explain import explanation, print_explanation

    facts = explanation(loaded, plugins)
    if json_output:
        typer.echo(json.dumps(facts, indent=2))
    else:
        print_explanation(facts)
