"""``polyclinic export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import ModelOption, PartOption, PluginsOption, SiteOption
from polyclinic.core.quick_imports import quick_imports


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    to: Annotated[str, typer.Option("--to", help="onnx, torchscript, monai-bundle or huggingface-folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the model. [default: RUN/exports/FORMAT]")
    ] = None,
    site: SiteOption = None,
    part: PartOption = None,
    model: ModelOption = None,
    plugins: PluginsOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write a run's model with preprocessing, window and model card, to run without polyclinic; checked first."""
    import json

    from rich.console import Console

    from polyclinic.core.errors import PolyclinicError

    with quick_imports():
        from polyclinic.export.export_model import export_model

    if model not in (None, "best", "last"):
        raise PolyclinicError(f"--model {model}: expected best or last.")
    with Console(stderr=True).status("") as status:
        done = export_model(
            run, to, out=out, site=site, part=part, model=model, plugins=plugins,
            say=lambda text: status.update(text),
            warn=lambda text: typer.echo(f"warning: {text}", err=True),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(done.as_json(), indent=2))
        return
    if done.why_synthetic:
        typer.echo(f"no test images at hand ({done.why_synthetic.rstrip('.')})")
    typer.echo(done.check.sentence())
    if done.fixed_size is not None:
        typer.echo(f"this network takes images of one size only: {done.fixed_size}")
    typer.echo(f"{len(done.files)} files written to {done.folder}: {', '.join(done.files)}")
