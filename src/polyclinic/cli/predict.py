"""``polyclinic predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.core.quick_imports import quick_imports


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="An image, or a folder of images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the masks.")],
    site: Annotated[
        str | None, typer.Option("--site", help="Whose model, for methods whose sites have models of their own.")
    ] = None,
    part: Annotated[
        str | None, typer.Option("--part", help="Which training, for protocols with several (without-x, fold-1).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="best (on validation data) or last. [default: the one that was tested]"),
    ] = None,
) -> None:
    """Segment images with the model of a run: masks in the images' own format and geometry."""
    from rich.console import Console
    from rich.progress import Progress

    from polyclinic.core.errors import PolyclinicError

    with quick_imports():
        from polyclinic.runs.predict import predict as segment

    if model not in (None, "best", "last"):
        raise PolyclinicError(f"--model {model}: expected best or last.")
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("predict", total=None)
        written = segment(
            run, images, out, site=site, part=part, model=model,
            progress=lambda done, total, name: bar.update(task, completed=done, total=total, description=name),
            warn=lambda text: typer.echo(f"warning: {text}", err=True),
        )  # fmt: skip
    typer.echo(f"{len(written)} mask{'' if len(written) == 1 else 's'} written to {out}")
