"""``polyclinic predict``."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import JsonOption, ModelOption, PartOption, PluginsOption, SiteOption
from polyclinic.core.quick_imports import quick_imports

if TYPE_CHECKING:
    from collections.abc import Callable

    from polyclinic.runs.prediction_plan import Outcome

_BETWEEN_LINES = 20.0  # seconds between two lines where there is no terminal


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    images: Annotated[
        Path, typer.Argument(metavar="IMAGES", help="An image, a folder of images, or a folder of DICOM series.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the masks.")],
    site: SiteOption = None,
    part: PartOption = None,
    model: ModelOption = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probabilities of all classes: large files.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make masks again that are there already.")] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Make only what is missing, after an interruption.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Images side by side. [default: as many as cores, GPUs and memory allow]"
        ),
    ] = None,
    plugins: PluginsOption = False,
    json_output: JsonOption = False,
) -> None:
    """Segment images with the model of a run: masks in the images' own format and geometry."""
    from polyclinic.core.errors import PolyclinicError

    if model not in (None, "best", "last"):
        raise PolyclinicError(f"--model {model}: expected best or last.")
    with quick_imports():
        from polyclinic.runs.predict import make_masks, raise_failures

    with _interruptible(out), _screen() as progress:
        outcome = make_masks(
            run, images, out, site=site, part=part, model=model, probabilities=probabilities, overwrite=overwrite,
            skip_existing=skip_existing, jobs=jobs, plugins=plugins, progress=progress,
            warn=lambda text: typer.echo(f"warning: {text}", err=True),
        )  # fmt: skip
    if json_output:
        typer.echo(json.dumps(_as_json(outcome), indent=2))
    raise_failures(outcome)
    if not json_output:
        typer.echo(_summary(outcome))


def _summary(outcome: Outcome) -> str:
    from polyclinic.core.wording import counted

    words = f"{counted(len(outcome.masks), 'mask')} written to {outcome.out}"
    if outcome.probabilities:
        order = ", ".join(f"{number} {name}" for number, name in enumerate(outcome.classes))
        words += f", probabilities of {len(outcome.probabilities)} beside them (classes: {order})"
    return words + (f"; {len(outcome.skipped)} were there already" if outcome.skipped else "")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    written = [
        {
            "image": name,
            "mask": str(outcome.masks[name]) if name in outcome.masks else None,
            "probabilities": str(outcome.probabilities[name]) if name in outcome.probabilities else None,
        }
        for name in dict.fromkeys([*outcome.masks, *outcome.probabilities])
    ]
    failed = [{"image": name, "problem": problem} for name, problem in outcome.failed.items()]
    return {
        "out": str(outcome.out),
        "classes": list(outcome.classes),
        "written": written,
        "skipped": outcome.skipped,
        "failed": failed,
    }


@contextmanager
def _interruptible(out: Path) -> Iterator[None]:
    """Ctrl-C says how to go on, and ends with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        arguments = [word for word in sys.argv[1:] if word not in ("--overwrite", "--skip-existing")]
        again = shlex.join(["polyclinic", *arguments, "--skip-existing"])
        typer.echo(f"Interrupted. The masks in {out} are whole; go on with:\n  {again}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def _screen() -> Iterator[Callable[[int, int], None]]:
    """A bar in a terminal, elsewhere a line now and then; on stderr, so that stdout stays for results."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last = time.monotonic()
    columns = TextColumn("segmenting"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and 0 < done < total and time.monotonic() - last > _BETWEEN_LINES:
                last = time.monotonic()
                console.print(f"segmented {done} of {total} images", markup=False)

        yield show
