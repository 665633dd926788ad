"""``polyclinic run``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.options import JsonOption, RecipeArgument, SetOption
from polyclinic.core.quick_imports import quick_imports

if TYPE_CHECKING:
    from polyclinic.core.timing import Timeline


def run(
    recipe: RecipeArgument,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A method or an expression, such as fedavg+proximal(mu=0.1).")
    ] = None,
    overrides: SetOption = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="auto, inprocess, workers, flower (a real federation on this machine), or simulation (Ray).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder. [default: runs/FEDERATION/METHOD-seedN]")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with an interrupted run, to the same result, or with more training.rounds."
        ),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Say where the time went: a table, profile.json and trace.json.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Train and test one method: leaves a run folder, prints a table of the sites."""
    from polyclinic.cli.progress import ScreenObserver
    from polyclinic.recipe.files import load_recipe, require_federation

    overrides = [*(overrides or []), *([f"engine.name={engine}"] if engine else [])]
    loaded = load_recipe(recipe, overrides, method=method)
    require_federation(loaded, recipe)
    with quick_imports():
        from polyclinic.api import run as execute
        from polyclinic.report.run_table import print_run
        from polyclinic.report.stuck_runs import stuck_line
        from polyclinic.runs.folder import RunFolder

    if resume and out is not None and not RunFolder(out).started():
        typer.echo(f"{out}: holds no finished round to resume from, so training starts with the first.", err=True)
    with ScreenObserver(loaded.method) as screen:
        try:
            result = execute(loaded, out=out, resume=resume, observer=screen, profile=_timeline() if profile else False)
        except KeyboardInterrupt:
            again = shlex.join(["polyclinic", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
            typer.echo(
                f"Interrupted. Everything up to the last finished round is kept; go on with:\n  {again}", err=True
            )
            raise typer.Exit(130) from None
    if json_output:
        typer.echo((result.folder / "summary.json").read_text(encoding="utf-8").rstrip())
        return
    print_run(result.summary)
    if stuck := stuck_line(result.summary):
        typer.secho(stuck, fg="yellow")
    if profile:
        from polyclinic.report.profile_table import print_profile

        print_profile(result.folder)
    typer.echo(f"Run folder: {result.folder}")


def _timeline() -> Timeline:
    """One that has begun with this process: start-up is part of what a user waits for."""
    from polyclinic.core.timing import Timeline
    from polyclinic.runs.profile import process_start

    return Timeline(process_start())
