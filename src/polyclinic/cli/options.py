"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file (TOML), or the name of a shipped recipe.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as training.rounds=5. Can be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
