"""``polyclinic server``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import JsonOption, RecipeArgument, SetOption
from polyclinic.core.quick_imports import quick_imports


def server(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder.")],
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder of the server's keys and accepted sites (polyclinic keys).")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="A method or an expression.")] = None,
    overrides: SetOption = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every interface.")] = "0.0.0.0",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The one port that sites must reach.")] = 8443,
    sites: Annotated[
        str | None, typer.Option("--sites", help="Only these of the accepted sites, separated by commas.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="No encryption, no keys: anybody can join, read and change everything."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Coordinate a real federation: wait for the sites, train, test, and leave a run folder.

    Sites connect with `polyclinic site`. Each of them must be accepted first: `polyclinic keys accept`.
    """
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.recipe.files import load_recipe

    loaded = load_recipe(recipe, overrides or [], method=method)
    if insecure == (keys is not None):
        raise PolyclinicError(
            "Give --keys FOLDER (made with polyclinic keys server), or --insecure to go without encryption."
            if keys is None
            else "--keys and --insecure exclude each other; leave --insecure out."
        )
    from polyclinic.cli.progress import ScreenObserver

    with quick_imports():
        from polyclinic.deploy.coordinator.run_server import ServerSettings, run_server
        from polyclinic.deploy.keys.key_folders import accepted
        from polyclinic.report.run_table import print_run
        from polyclinic.runs.high_quorum import refuse_high_quorum
        from polyclinic.runs.out_folder import refuse_other_use

    refuse_other_use(out, "run")
    named = tuple(name.strip() for name in (sites or "").split(",") if name.strip())
    if known := named or (tuple(accepted(keys)) if keys is not None and keys.is_dir() else ()):
        refuse_high_quorum(loaded, len([site for site in known if site in (loaded.data.sites or known)]))
    if insecure:
        typer.echo("warning: --insecure: no encryption and no keys; use it on one machine, for trials only.", err=True)
    with ScreenObserver(loaded.method) as screen:
        try:
            summary = run_server(loaded, out, ServerSettings(host, port, keys, named), screen, resume)
        except KeyboardInterrupt:
            again = shlex.join(["polyclinic", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
            typer.echo(f"Interrupted. Every finished round is kept; go on with:\n  {again}", err=True)
            raise typer.Exit(130) from None
    if json_output:
        typer.echo((out / "summary.json").read_text(encoding="utf-8").rstrip())
        return
    print_run(summary)
    typer.echo(f"Run folder: {out}")
