"""Arguments that several commands share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
MethodsOption = Annotated[str, typer.Option("--methods", help="Methods or expressions, separated by commas.")]
SeedsOption = Annotated[
    str, typer.Option("--seeds", help="How many seeds (3: the recipe's and the next two), or a list such as 0,7,42.")
]
MetricOption = Annotated[str, typer.Option("--metric", help="The metric of the table.")]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs side by side. [default: as many as cores, GPUs and memory allow]"),
]
PluginsOption = Annotated[
    bool, typer.Option("--plugins", help="Run the plugins that the recipe names: programs with your rights.")
]
SiteOption = Annotated[
    str | None,
    typer.Option("--site", help="Whose model, where sites have their own; with data.intensity = site whose numbers."),
]
PartOption = Annotated[
    str | None, typer.Option("--part", help="Which training, for protocols with several (without-x, fold-1).")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="best (on validation data) or last. [default: the one that was tested]")
]


@contextmanager
def interruptible() -> Iterator[None]:
    """Around a grid of runs: Ctrl-C says how to go on, and ends with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["polyclinic", *sys.argv[1:]])
        typer.echo(f"Interrupted. Finished runs are kept; go on with:\n  {command}", err=True)
        raise typer.Exit(130) from None
