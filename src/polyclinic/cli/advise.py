"""``polyclinic advise``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import JsonOption
from polyclinic.core.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from polyclinic.preview.advice import Advice, MethodAdvice


def advise(
    federation: Annotated[str, typer.Argument(help="A federation's folder, or demo:NAME.", show_default=False)],
    unseen: Annotated[
        bool, typer.Option("--unseen", help="The model will be used at sites that take no part in training.")
    ] = False,
    labelled: Annotated[
        int | None, typer.Option("--labelled", min=1, help="So many images of a site will have labels.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Also write the settings as a recipe.", show_default=False)
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Say which settings and methods to start from, and why: from the images, and from what was measured elsewhere."""
    from rich.console import Console

    from polyclinic.cli.data import checked
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.data.federation_traits import FederationTraits
    from polyclinic.preview.advice import advise as advice_for
    from polyclinic.preview.advice_recipe import advised_recipe, what_leaves
    from polyclinic.preview.evidence import load_evidence

    if write is not None and write.exists():
        raise PolyclinicError(f"--write {write}: exists already; give the name of a new file.")
    report = checked(federation)
    if report.errors:
        first = report.errors[0]
        raise PolyclinicError(
            f"{federation}: {len(report.errors)} problems must be mended before a run, the first: {first.file}: "
            f"{first.sentence} See all of them with `polyclinic data check {federation}`."
        )
    advice = advice_for(FederationTraits.of(report), load_evidence(), unseen, labelled)
    recipe = advised_recipe(advice, federation, unseen, labelled)
    if write is not None:
        from polyclinic.core.files import write_text

        write_text(write, recipe)
    command = (
        f"polyclinic compare {write or 'recipe.toml'} --methods {_joined(advice.compared)} --seeds 3 --out runs/advised"
    )
    leaves = {one.method: what_leaves(recipe, one.method) for one in advice.methods}
    if json_output:
        typer.echo(json.dumps(_plain(advice, leaves) | {"recipe": recipe, "command": command}, indent=2))
        return
    console = Console(highlight=False)
    _print_traits(console, report.federation.name, advice)
    _print_settings(console, advice)
    _print_methods(console, advice, leaves)
    for note in advice.notes:
        console.print(f"Mind: {note}.", markup=False)
    written = f"Recipe: {write}" if write else f"As a recipe: polyclinic advise {federation} --write recipe.toml"
    console.print(f"\n{written}\nThen: {command}", markup=False, soft_wrap=True)


def _joined(methods: tuple[str, ...]) -> str:
    text = ",".join(methods)
    return f"'{text}'" if "(" in text else text


def _plain(advice: Advice, leaves: dict[str, str]) -> dict[str, Any]:
    table = asdict(advice)
    table["nearest"] = advice.nearest and advice.nearest.federation
    for method, one in zip(table["methods"], advice.methods, strict=True):
        method["verdict"], method["leaves"] = one.verdict, leaves[one.method]
        method["measured"] = [
            {"federation": m.table.federation, "page": m.table.page, "seeds": m.table.seeds, "cases": m.table.cases}
            | {"reference": m.table.reference, **asdict(m.row)}
            for m in one.measured
        ]
    return table


def _print_traits(console: Console, name: str, advice: Advice) -> None:
    traits = advice.traits
    sizes = f"{traits.smallest_site} to {traits.largest_site} images"
    about = f"{counted(traits.sites, 'site')} of {sizes}, {traits.dims}D, {traits.labelled:.0%} labelled"
    console.print(f"{name}: {about}", markup=False)
    if traits.width is not None and traits.foreground is not None:
        kind = "thin" if traits.is_thin else "bulky"
        where = f", in its middle {' x '.join(map(str, traits.middle))}" if traits.middle else ""
        size = f"about {traits.width:.0f} pixels wide, {traits.foreground:.1%} of an image{where}"
        console.print(f"structures  {kind}: {size}")
        console.print(f"polarity    {traits.polarity}")
    if traits.shift is not None:
        size = f"{traits.shift:.2f} times the differences between images of one site"
        console.print(f"shift       {traits.shift_word}: {size}")


def _print_settings(console: Console, advice: Advice) -> None:
    console.print("\n[bold]Settings[/bold]" + ("" if advice.settings else ": the defaults"))
    for setting in advice.settings:
        console.print(f"{setting.key} = {setting.value}\n    {setting.reason}", markup=False)


def _print_methods(console: Console, advice: Advice, leaves: dict[str, str]) -> None:
    nearest = advice.nearest
    console.print("\n[bold]Methods[/bold]")
    if nearest is None:
        console.print("No federation of this kind was measured.")
    elif not advice.alike:
        console.print(f"No measured federation is like this one; the nearest is {nearest.federation}.")
    for one in advice.methods:
        cost = "" if one.cost is None else f" A round takes {one.cost:.2f} of FedAvg's time."
        console.print(f"[bold]{one.method}[/bold]  {one.reason}.{cost}")
        for line in _evidence_lines(one):
            console.print(f"    {line}", markup=False, soft_wrap=True)
        console.print(f"    leaves a site: {leaves[one.method]}", markup=False, soft_wrap=True)


def _evidence_lines(one: MethodAdvice) -> list[str]:
    if not one.measured:
        return ["not measured on real federations of this kind"]
    return [
        f"{m.table.federation}: {m.row.dice:.1f} Dice"
        + (f", {m.row.against} against {m.table.reference}: {m.row.verdict}" if m.row.against else "")
        + f" ({m.table.seeds} seeds, {m.table.page})"
        for m in one.measured
    ]
