"""``polyclinic data``: look at a federation before training on it, or write an embedded one."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from polyclinic.data.check import CheckReport
    from polyclinic.data.federation import Federation
    from polyclinic.data.problems import Problem

app = typer.Typer(
    help="Check a federation's files, write a demo federation, or look after prepared images.", no_args_is_help=True
)

_SHOWN_FILES = 3  # of a warning that many files share; errors name every file, --json everything


@app.command()
def check(
    folder: Annotated[str, typer.Argument(help="A federation's folder, or demo:NAME.", show_default=False)],
    sheet: Annotated[
        Path, typer.Option(help="Where the contact sheet goes. It shows patients' images: keep it where they are kept.")
    ] = Path("contact-sheet.png"),
    no_sheet: Annotated[bool, typer.Option("--no-sheet", help="Write no contact sheet.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Read every image and label, list every problem, and draw a contact sheet.

    Exits with 2 when there are errors, with 0 when there are none or only warnings.
    """
    from rich.console import Console

    if not no_sheet:
        from polyclinic.data.contact_sheet import refuse_other_file

        refuse_other_file(sheet)  # before all images are read, which takes minutes
    report = checked(folder)
    console = Console(highlight=False)
    if not json_output:
        _print_report(console, report)
    drawn = not no_sheet and _write_sheet(report.federation, sheet)
    if json_output:
        typer.echo(json.dumps(report.as_dict() | {"sheet": str(sheet) if drawn else None}, indent=2))
    elif drawn:
        console.print(f"Contact sheet: {sheet}", soft_wrap=True, markup=False)
    if report.errors:
        raise typer.Exit(2)


@app.command()
def demo(
    name: Annotated[
        str,
        typer.Argument(help="nuclei, prostate, tumour, pathology, cardiac, spine or bladder.", show_default=False),
    ],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="Another seed draws other patients of the same hospitals.")] = 0,
) -> None:
    """Write an embedded federation of synthetic hospitals as files, to look at or to start your own from.

    nuclei: 2D colour, 4 hospitals. prostate: slices of MRI volumes, 6 hospitals. tumour: 3D, 4 channels, 3 hospitals.
    pathology: 2D colour, 16 sites in four groups. cardiac, spine, bladder: slices of MRI volumes, 4 sites each.
    """
    from polyclinic.data.phantoms import find_demo, write_demo

    write_demo(name, folder, seed)
    typer.echo(f"Wrote {find_demo(name).description}, to {folder}.")
    typer.echo(f"Next: polyclinic data check {folder}")


@app.command()
def cache(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder that data.cache names. [default: polyclinic's cache folder]", show_default=False),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all that no process uses.")] = False,
    json_output: JsonOption = False,
) -> None:
    """List prepared images that runs share, or remove them. They are as sensitive as the images they were made from.

    They are made again when a run needs them.
    """
    from polyclinic.core.wording import readable_bytes
    from polyclinic.data.prepared_cache import PreparedCache, default_cache_folder, named_cache

    prepared = PreparedCache(default_cache_folder(), 0) if folder is None else named_cache(folder)
    removed, in_use = prepared.clear() if clear else (0, 0)
    stored = prepared.stored()
    if json_output:
        entries = [{"name": file.path.stem, "bytes": file.bytes, "last_use": file.last_use} for file in stored]
        about = {"folder": str(prepared.folder), "bytes": sum(file.bytes for file in stored), "removed": removed}
        typer.echo(json.dumps({**about, "entries": entries}, indent=2))
        return
    if clear:
        stays = f"; {in_use} {'is' if in_use == 1 else 'are'} in use and stay{'s' if in_use == 1 else ''}"
        typer.echo(f"Removed {readable_bytes(removed)} from {prepared.folder}{stays if in_use else ''}.")
        return
    for file in reversed(stored):
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.last_use))
        typer.echo(f"{used}  {readable_bytes(file.bytes):>10}  {file.path.stem}")
    total = readable_bytes(sum(file.bytes for file in stored))
    count = f"{len(stored)} {'entry' if len(stored) == 1 else 'entries'}"
    typer.echo(f"{prepared.folder}: {count}, {total}. Remove all of them: --clear")


def checked(folder: str) -> CheckReport:
    """Check a federation with a bar of progress."""
    from rich.console import Console
    from rich.progress import Progress

    from polyclinic.data.check import check_federation

    console = Console(stderr=True)  # so that --json can be piped
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Reading images", total=None)
        return check_federation(folder, progress=lambda done, total: progress.update(bar, completed=done, total=total))


def _write_sheet(federation: Federation, path: Path) -> bool:
    """Whether there was any image to show."""
    from polyclinic.data.contact_sheet import contact_sheet

    return contact_sheet(federation, path) > 0


def _print_report(console: Console, report: CheckReport) -> None:
    from rich.table import Table

    task = report.federation.task
    kind = "3D" if task.spatial_dims == 3 else "2D slices of volumes" if report.federation.volumes_as_slices else "2D"
    channels = f"{task.channels} {'channel' if task.channels == 1 else 'channels'}"
    names = ", ".join(f"{value} {name}" for value, name in report.classes.items()) or "unknown"
    console.print(f"{report.federation.name}: {kind}, {channels}; classes {names}", markup=False)
    if task.regions:
        regions = ", ".join(f"{name} ({' '.join(map(str, members))})" for name, members in task.regions)
        console.print(f"regions that are measured instead of classes: {regions}", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("site", overflow="fold", min_width=8)
    for column in ("images", "cases", "labels"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("size", "classes", "intensity", "foreground"):
        table.add_column(column, no_wrap=True)
    for row in report.rows:
        intensity = "-" if row.mean is None else f"{row.mean:.3g} ± {row.std:.3g}"
        counts = (str(row.images), str(row.cases), str(row.labelled))
        present = " ".join(str(task.classes.index(name)) for name in row.classes) or "-"
        size = _between(row.sizes) + ("" if row.spacings is None else f"\n{_between(row.spacings)} mm")
        wide = "" if row.width is None else f", {row.width:.0f} px"
        foreground = "-" if row.foreground is None else f"{100 * row.foreground:.2g} %{wide}"
        table.add_row(_plain(row.site), *counts, size, present, intensity, foreground)
    console.print(table)
    if report.shift is not None:
        console.print(f"shift between sites: {report.shift:.2f} times the differences between images of one site")
    _print_problems(console, "error", report.errors)
    _print_problems(console, "warning", report.warnings)
    if not report.problems:
        console.print("No problems found.", style="green")


def _print_problems(console: Console, kind: str, problems: tuple[Problem, ...]) -> None:
    """Every problem once, with the files that share it."""
    if not problems:
        return
    style = "red" if kind == "error" else "yellow"
    console.print(f"\n{len(problems)} {kind}{'s' if len(problems) > 1 else ''}", style=f"bold {style}")
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for problem in problems:
        groups[problem.site, problem.sentence].append(problem.file)
    for (_, sentence), files in groups.items():
        count = len(files) if kind == "error" else _SHOWN_FILES
        shown = ", ".join(file for file in files[:count] if file)
        more = f" and {len(files) - count} more (all: --json)" if len(files) > count else ""
        console.print(f"- {shown}{more}{': ' if shown else ''}{sentence}", markup=False)


def _between(ends: tuple[tuple[float, ...], tuple[float, ...]] | None) -> str:
    if ends is None:
        return "-"
    axes = ((f"{low:.3g}", f"{high:.3g}") for low, high in zip(*ends, strict=True))
    return "x".join(low if low == high else f"{low}-{high}" for low, high in axes)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
