"""``polyclinic report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import JsonOption, PluginsOption
from polyclinic.core.quick_imports import quick_imports


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, or the folder of a compare, study or ablate.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file. [default: DIR/report.html]")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    no_pictures: Annotated[
        bool,
        typer.Option("--no-pictures", help="Without images, predictions and features: quick, and fit to be sent on."),
    ] = False,
    metric: Annotated[str | None, typer.Option("--metric", help="The metric of the page. [default: dice]")] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="The method that others are compared with. [default: the first]")
    ] = None,
    plugins: PluginsOption = False,
    json_output: JsonOption = False,
) -> None:
    """Write one HTML file that shows all of it: the answer, tables, curves, cases, costs, pictures, what left.

    It opens offline. Figures for a paper, as PDF and SVG, are written to DIR/figures.
    """
    from rich.console import Console
    from rich.progress import Progress

    with quick_imports():
        from polyclinic.api import report as write

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("report", total=None)
        written = write(
            folder, out=out, pictures=not no_pictures, metric=metric, reference=reference, plugins=plugins,
            progress=lambda done, total, name: bar.update(task, completed=done, total=total, description=name),
            warn=lambda text: typer.echo(f"warning: {text}", err=True),
        )  # fmt: skip
    if json_output:
        paths = {"report": str(written.report), "figures": [str(path) for path in written.figures]}
        typer.echo(json.dumps({**paths, **written.headline}, indent=2))
    else:
        for grid in written.headline["comparisons"]:
            for line in (f"{grid['title']}: {grid['answer']}" if grid["title"] else grid["answer"], *grid["sentences"]):
                typer.echo(line)
        typer.echo(f"Report: {written.report}; {len(written.figures)} figures: {folder / 'figures'}")
        if written.headline["pictures"]:
            typer.echo("It shows patients' images: keep it where they are kept, or make it with --no-pictures.")
    if open_it:
        typer.launch(written.report.resolve().as_uri())
