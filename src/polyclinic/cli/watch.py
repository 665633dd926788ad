"""``polyclinic watch``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from polyclinic.runs.live_source import LiveSnapshot


def watch(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_SERVER", help="A run folder, or HOST:PORT of a coordinator's server.")
    ],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="For HOST:PORT: the federation's ca.crt; nobody else is trusted.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="For HOST:PORT: a copy of the coordinator's RUN/watch.token.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="For HOST:PORT without encryption (polyclinic server --insecure).")
    ] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the view once and end.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the view once, as JSON.")] = False,
) -> None:
    """Watch a run: its rounds, and what each site does now, has reached, and failed at.

    Ends with the run: code 0 when it finished, 1 when it stopped. Where the output is no terminal, it is a line for
    every change.
    """
    from rich.console import Console

    from polyclinic.report.live_screen import screen
    from polyclinic.runs.live_source import follow, open_source

    source = open_source(target, ca, token_file, insecure)
    if insecure:
        typer.echo("warning: --insecure: the token and the view travel without encryption.", err=True)
    try:
        seen = source.read()
        console = Console(highlight=False)
        if json_output:
            typer.echo(json.dumps(seen.view, indent=2))
        elif once:
            console.print(screen(seen.view, seen.now))
        else:
            views = follow(source, seen, every)
            last = _on_screen(views, console) if console.is_terminal and not console.is_dumb_terminal else _lines(views)
            if last.view.get("stopped"):
                raise typer.Exit(1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _on_screen(views: Iterable[LiveSnapshot], console: Console) -> LiveSnapshot:
    """A screen that renews itself; the last one stays."""
    from rich.live import Live

    from polyclinic.report.live_screen import screen

    with Live(console=console, auto_refresh=False) as live:
        for seen in views:
            live.update(screen(*seen), refresh=True)
    return seen


def _lines(views: Iterable[LiveSnapshot]) -> LiveSnapshot:
    """For logs and scripts: what is new, once."""
    from polyclinic.report.live_screen import news

    before: LiveSnapshot | None = None
    for seen in views:
        for line in news(before, seen):
            typer.echo(line)
        before = seen
    return seen
