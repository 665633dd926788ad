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
        snapshot = source.read()
        console = Console(highlight=False)
        if json_output:
            typer.echo(json.dumps(snapshot.view, indent=2))
        elif once:
            console.print(screen(snapshot.view, snapshot.now))
        else:
            snapshots = follow(source, snapshot, every)
            has_screen = console.is_terminal and not console.is_dumb_terminal
            last = _show_on_screen(snapshots, console) if has_screen else _print_changes(snapshots)
            if last.view.get("stopped"):
                raise typer.Exit(1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _show_on_screen(snapshots: Iterable[LiveSnapshot], console: Console) -> LiveSnapshot:
    """Redraw a screen for each snapshot; the last one stays."""
    from rich.live import Live

    from polyclinic.report.live_screen import screen

    with Live(console=console, auto_refresh=False) as live:
        for snapshot in snapshots:
            live.update(screen(*snapshot), refresh=True)
    return snapshot


def _print_changes(snapshots: Iterable[LiveSnapshot]) -> LiveSnapshot:
    """For logs and scripts: print a line for every change."""
    from polyclinic.report.live_screen import news

    before: LiveSnapshot | None = None
    for snapshot in snapshots:
        for line in news(before, snapshot):
            typer.echo(line)
        before = snapshot
    return snapshot
