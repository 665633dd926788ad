"""``polyclinic advise``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import JsonOption
from polyclinic.core.wording import counted

if TYPE_CHECKING:
    from polyclinic.preview.advice import Advice
    from polyclinic.preview.advice_cost import MethodCost
    from polyclinic.preview.advice_methods import Measured


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
    from polyclinic.preview.advice_budget import budget_note
    from polyclinic.preview.advice_cost import method_costs
    from polyclinic.preview.advice_recipe import (
        about_runs,
        advised_plan,
        advised_recipe,
        compare_command,
        number_of_runs,
        write_command,
    )
    from polyclinic.preview.advice_text import print_advice, print_way_on
    from polyclinic.preview.evidence import load_evidence

    if write is not None and write.exists():
        raise PolyclinicError(f"--write {write}: exists already; give the name of a new file.")
    report = checked(federation)
    if report.errors:
        first, see = report.errors[0], shlex.join(["polyclinic", "data", "check", federation])
        raise PolyclinicError(
            f"{federation}: {counted(len(report.errors), 'problem')} must be mended before a run, the first: "
            f"{first.file}: {first.sentence} See all of them with `{see}`."
        )
    advice = advice_for(FederationTraits.of(report), load_evidence(), unseen, labelled)
    recipe = advised_recipe(advice, federation)
    plan = advised_plan(recipe)
    note = None if labelled is None else budget_note(plan, labelled)
    if note is not None:
        advice = replace(advice, notes=(*advice.notes, note))
    costs = method_costs(plan, [one.method for one in advice.methods])
    if write is not None:
        from polyclinic.core.files import write_text

        write_text(write, recipe)
    command = compare_command(advice, str(write or "recipe.toml"))
    if json_output:
        facts = {"recipe": recipe, "command": command, "runs": number_of_runs(advice)}
        typer.echo(json.dumps(_plain(advice, costs) | facts, indent=2))
        return
    console = Console(highlight=False)
    print_advice(console, report.federation.name, advice, costs)
    written = f"Recipe: {write}" if write else f"As a recipe: {write_command(advice, federation)}"
    print_way_on(console, written, command, about_runs(advice))


def _plain(advice: Advice, costs: Mapping[str, MethodCost]) -> dict[str, Any]:
    table = asdict(advice)
    table["nearest"] = advice.nearest and advice.nearest.federation
    table["ceiling"] = [_plain_measured(one) for one in advice.ceiling]
    for method, one in zip(table["methods"], advice.methods, strict=True):
        cost = costs[one.method]
        method |= {"verdict": one.verdict, "measured": [_plain_measured(m) for m in one.measured]}
        method |= {"leaves": cost.leaves, "work": cost.work, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    return table


def _plain_measured(one: Measured) -> dict[str, Any]:
    return {
        "federation": one.table.federation,
        "page": one.table.page,
        "seeds": one.table.seeds,
        "cases": one.table.cases,
        "reference": one.table.reference,
        "reference_dice": one.reference_dice,
        "alike": one.alike,
        "other_settings": one.differs,
        **asdict(one.row),
    }
