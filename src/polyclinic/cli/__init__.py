"""The command line: one thin file a command. Heavy things are imported where they are used, so that help is instant."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from polyclinic.cli.ablate import ablate
from polyclinic.cli.advise import advise
from polyclinic.cli.audit import audit
from polyclinic.cli.compare import compare
from polyclinic.cli.cost import cost
from polyclinic.cli.data import app as data_app
from polyclinic.cli.explain import explain
from polyclinic.cli.export import export
from polyclinic.cli.keys import app as keys_app
from polyclinic.cli.methods import methods
from polyclinic.cli.predict import predict
from polyclinic.cli.report import report
from polyclinic.cli.run import run
from polyclinic.cli.server import server
from polyclinic.cli.site import app as site_app
from polyclinic.cli.study import study
from polyclinic.cli.watch import watch
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.version import VERSION

app = typer.Typer(
    help="Federated medical image segmentation: many clinics, one model, no image ever leaves a clinic.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyclinic {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


app.command()(run)
app.command()(compare)
app.command()(ablate)
app.command()(study)
app.command()(report)
app.command()(predict)
app.command()(export)
app.command()(methods)
app.command()(explain)
app.command()(advise)
app.command()(cost)
app.command()(server)
app.add_typer(site_app, name="site")
app.command()(watch)
app.command()(audit)
app.add_typer(data_app, name="data")
app.add_typer(keys_app, name="keys")


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2, an interruption 130."""
    # Asked to end by a scheduler, leave as after Ctrl-C: so that nothing that was started stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app()
    except PolyclinicError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
