"""``polyclinic cost``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from polyclinic.cli.options import JsonOption, RecipeArgument, SetOption


def cost(
    recipe: RecipeArgument,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Methods or expressions, separated by commas. [default: the recipe's]"),
    ] = None,
    overrides: SetOption = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run one round on the images and count the bytes that cross.")
    ] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed passes of each method.")] = 7,
    json_output: JsonOption = False,
) -> None:
    """Say what methods cost before a run: FLOPs, parameters, time per image, bytes up and down."""
    from polyclinic.recipe_files import load_recipe
    from polyclinic.runs.plan import plan_grid, split_expressions

    loaded = load_recipe(recipe, overrides or [])
    wanted = (loaded.method,) if methods is None else split_expressions(methods)
    wanted = plan_grid(loaded, wanted, (loaded.seed,), Path()).methods
    from polyclinic.report.cost import costs

    facts = costs(loaded, wanted, measure, repeats, tell=lambda text: typer.echo(text, err=True))
    if json_output:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    """A row a method, and below what the numbers are."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, rows = Console(highlight=False), facts["methods"]
    # No lines between columns, so that short names fit 80 columns.
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nmethod", overflow="fold")
    kinds = ("FLOPs predict", "FLOPs train", "params all", "params trained", "time predict", "bytes up", "bytes down")
    for kind in kinds:
        table.add_column(kind.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        numbers = (row["flops"]["inference"], row["flops"]["training"], row["parameters"], row["trainable"])
        ways = ["images", "-"] if row["images_leave"] else [_bytes(row["bytes"][way]) for way in ("up", "down")]
        table.add_row(escape(row["method"]), *map(_short, numbers), _time(row["seconds"]["median"]), *ways)
    console.print(table)
    console.print()
    for line in [*_legend(facts), *(line for row in rows for line in _remarks(row, facts))]:
        console.print(line, markup=False)


def _legend(facts: dict[str, Any]) -> list[str]:
    """What the columns are."""
    counted, timed, shape = facts["flops"], facts["timed"], "x".join(map(str, facts["image"]))
    measured = any(row["bytes"]["up"]["measured"] is not None for row in facts["methods"])
    threads = "1 thread" if timed["threads"] == 1 else f"{timed['threads']} threads"
    return [
        f"{facts['network']} on {facts['federation']}, for one image of {shape}.",
        f"FLOPs: counted by torch, {counted['counted']}. Not counted: {counted['not_counted']}.",
        f"train: one image of a step's {facts['batch_size']}, in the second round, with backward and all extra passes.",
        f"time: measured here, median of {timed['repeats']} turns, batch of one, {timed['device']}, {threads}.",
        f"bytes: of a site in a round, {'measured, mean of the sites' if measured else 'as declared'}; "
        "a validation sends the weights down once more.",
    ]


def _remarks(row: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """What a row's columns cannot hold."""
    lines = []
    late = [
        f"{component} {way} ({_short(size, 'B')} with noise)"
        for way in ("up", "down")
        for component, size in row["bytes"][way]["run_time"].items()
        if row["bytes"][way]["measured"] is None
    ]
    if late:
        lines.append(f"+ {row['method']}: and what is only known at run time, {', '.join(late)}; see --measure.")
    flops, batch = row["flops"], facts["batch_size"]
    # Clustering a few vectors is no news; a pass over all images or many probes is.
    if flops["site_besides_steps"] + flops["server"] > flops["training"] * batch / 100:
        site, server = _short(flops["site_besides_steps"]), _short(flops["server"])
        where = f"{site} FLOPs at a site of {batch} images and {server} at the server of {facts['sites']} sites"
        lines.append(f"{row['method']}: besides the steps a round has {where}.")
    return lines


def _bytes(way: dict[str, Any]) -> str:
    """Bytes in one direction; a plus stands for what is only known at run time."""
    if way["measured"] is not None:
        return _short(mean(way["measured"].values()), "B")
    return _short(way["weights"] + way["declared"], "B") + ("+" if way["run_time"] else "")


def _short(number: float, what: str = "") -> str:
    """Four digits and a unit, in powers of 1000."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.95 or unit == "T":
            break
        number /= 1000
    return f"{number:#.4g} {unit}{what}" if unit else f"{number:.0f} {what}".rstrip()


def _time(seconds: float) -> str:
    return f"{seconds:#.4g} s" if seconds >= 1 else f"{1000 * seconds:#.4g} ms"
