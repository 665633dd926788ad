"""``polyclinic watch``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import PluginsOption
from polyclinic.core.errors import PolyclinicError

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
    web: Annotated[
        bool,
        typer.Option("--web", help="Show it in the browser, as a page that keeps itself up to date; also a compare."),
    ] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="For --web. [default: any free one]")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="For --web: only say the address.")] = False,
    plugins: PluginsOption = False,
) -> None:
    """Watch a run: its rounds, and what each site does now, has reached, and failed at.

    Ends with the run: code 0 when it finished, 1 when it stopped. Where the output is no terminal, it is a line for
    every change.
    """
    if (port or no_open or plugins) and not web:
        raise PolyclinicError("--port, --no-open and --plugins are for --web.")
    if web:
        if once or json_output:
            raise PolyclinicError("--web goes on until the run is over; leave out --once and --json.")
        _serve(target, ca, token_file, insecure, port, every, opens=not no_open, plugins=plugins)
        return
    from rich.console import Console

    from polyclinic.report.live_screen import screen
    from polyclinic.runs.live_source import follow, open_source

    source = open_source(target, ca, token_file, insecure)
    _warn(insecure)
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


def _warn(insecure: bool) -> None:
    if insecure:
        typer.echo("warning: --insecure: the token and the view travel without encryption.", err=True)


def _serve(
    target: str,
    ca: Path | None,
    token_file: Path | None,
    insecure: bool,
    port: int,
    every: float,
    opens: bool,
    plugins: bool,
) -> None:
    """The page on this machine's own address, until the run is over."""
    from polyclinic.cli.private_address import open_privately
    from polyclinic.report.page.live_page import FolderPage, ServerPage, watched_folder
    from polyclinic.report.page.origin import refused_plugins
    from polyclinic.report.page.results import read_results
    from polyclinic.report.page_server import PageServer
    from polyclinic.runs.live_source import open_source

    def declared(run: Path) -> dict[str, Any]:
        from polyclinic.runs.what_leaves import declared_exchange  # a network takes PyTorch, which takes seconds

        return declared_exchange(run, plugins)

    page: FolderPage | ServerPage
    if any((Path(target) / name).is_file() for name in ("recipe.toml", "grid.json", "study.json")):
        if ca or token_file or insecure:
            raise PolyclinicError("--ca, --token-file and --insecure are for HOST:PORT; a folder needs none of them.")
        page = watched_folder(Path(target), declared)
        if not plugins and (reason := refused_plugins(read_results(Path(target)))):
            typer.echo(f"warning: the page is without what components declare: {reason}", err=True)
    else:
        source = open_source(target, ca, token_file, insecure)
        _warn(insecure)
        page = ServerPage(source, source.read())
    server = PageServer(page, port)
    typer.echo(f"{server.address}")
    typer.echo(
        "Keep the address to yourself: whoever has it and an account here sees the run. Ctrl-C ends this, not the run."
    )
    try:
        with open_privately(server.address, opens):
            server.serve_until_over(every)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if page.stopped:
        raise typer.Exit(1)


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
