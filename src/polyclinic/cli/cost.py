"""``polyclinic cost``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from polyclinic.cli.options import JsonOption, PluginsOption, RecipeArgument, SetOption
from polyclinic.core.wording import counted

_COUNTS = {"threads": "thread", "repeats": "turn"}


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
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed steps and predictions of each method.")] = 7,
    seconds_limit: Annotated[
        float, typer.Option("--seconds-limit", min=0, help="Seconds for a method's timed steps; 0 times nothing.")
    ] = 20,
    plugins: PluginsOption = False,
    json_output: JsonOption = False,
) -> None:
    """Say what methods cost before a run: FLOPs, also of a whole round, parameters, time of an image, bytes."""
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.runs.grid_plan import plan_grid, split_expressions

    loaded = load_recipe(recipe, overrides or [])
    require_federation(loaded, recipe)
    wanted = (loaded.method,) if methods is None else split_expressions(methods)
    wanted = plan_grid(loaded, wanted, (loaded.seed,), Path()).methods
    from polyclinic.preview.cost import costs

    with _progress() as tell:
        facts = costs(loaded, wanted, measure, repeats, tell, seconds_limit, plugins)
    if json_output:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Tell what is being done: in a line that changes on a terminal, else line by line; never among the results."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: typer.echo(text, err=True)
        return
    with console.status("reading headers") as status:
        yield lambda text: status.update(escape(text))


def _print(facts: dict[str, Any]) -> None:
    """A row a method, and below what the numbers are."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, rows = Console(highlight=False), facts["methods"]
    # No lines between columns, so that short names fit 80 columns.
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\n\nmethod", overflow="fold")
    columns = []
    for kind, numbers in _numbers(rows).items():
        unit, texts = _column(kind, numbers)
        table.add_column("\n".join([*kind.split(), unit]), justify="right", no_wrap=True)
        columns.append(texts)
    for row, *texts in zip(rows, *columns, strict=True):
        if row["images_leave"]:
            texts[-2:] = "images", "-"
        for number, way in ((-2, "up"), (-1, "down")):
            if row["bytes"][way]["run_time"] and row["bytes"][way]["measured"] is None:
                texts[number] += "+"
        table.add_row(escape(row["method"]), *texts)
    console.print(table)
    console.print()
    for line in [*_legend(facts), *(line for row in rows for line in _remarks(row, facts))]:
        console.print(line, markup=False)


def _numbers(rows: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The columns of numbers; a time may be unknown."""
    trained = [row["trainable"] for row in rows]
    return {
        "FLOPs predict": [row["flops"]["inference"] for row in rows],
        "FLOPs train": [row["flops"]["training"] for row in rows],
        "FLOPs server": [row["flops"]["server"] for row in rows],
        **({"round ratio": [row["ratio"] for row in rows]} if len(rows) > 1 else {}),
        "params all": [row["parameters"] for row in rows],
        # A column only where something is frozen.
        **({} if trained == [row["parameters"] for row in rows] else {"params trained": trained}),
        "time predict": [row["seconds"]["inference"]["median"] for row in rows],
        "time train": [row["seconds"]["training"]["median"] for row in rows],
        "bytes up": [_bytes(row["bytes"]["up"]) for row in rows],
        "bytes down": [_bytes(row["bytes"]["down"]) for row in rows],
    }


def _legend(facts: dict[str, Any]) -> list[str]:
    """What the columns are."""
    flops, timed, shape = facts["flops"], facts["timed"], "x".join(map(str, facts["image"]))
    measured = any(row["bytes"]["up"]["measured"] is not None for row in facts["methods"])
    threads, turns = (f"{timed[key]} {name}{'s'[: timed[key] != 1]}" for key, name in _COUNTS.items())
    return [
        f"{facts['network']} on {facts['federation']}, for one image of {shape}.",
        f"FLOPs: counted by torch, {flops['counted']}. Not counted: {flops['not_counted']}.",
        f"train: one image of a step's {facts['batch_size']}, in the second round, with backward and all extra passes.",
        f"server: in a round of {counted(facts['sites'], 'site')}.{_about_ratio(facts)}",
        f"time: for one image, measured here, median of {turns} on {timed['device']} with {threads}; "
        f"predict in a {timed['inference']}, train in a {timed['training']}, without augmentation.",
        f"bytes: of a site in a round, {'measured, mean of the sites' if measured else 'as declared'}; "
        "a validation sends the weights down once more.",
    ]


def _about_ratio(facts: dict[str, Any]) -> str:
    """What the ratio is, where there is one."""
    if len(facts["methods"]) < 2:
        return ""
    first = facts["methods"][0]
    total = _short(first["flops"]["round"]["total"])
    return f" ratio: all FLOPs of a round, at the sites and the server, over those of {first['method']} ({total})."


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
    if flops["site_besides_steps"] > flops["training"] * batch / 100:
        where = f"{_short(flops['site_besides_steps'])} FLOPs at a site of {batch} images"
        lines.append(f"{row['method']}: besides the steps a round has {where}.")
    if flops["rehearsed_sites"] < facts["sites"] and not row["images_leave"]:
        lines.append(f"{row['method']}: the server's work is that of a round of {flops['rehearsed_sites']} sites.")
    if (reason := row["seconds"]["not_timed"]) is not None:
        lines.append(f"{row['method']}: not timed, {reason}.")
    return [*lines, *_about_count(row)]


def _about_count(row: dict[str, Any]) -> list[str]:
    """What was not counted on images of the right size."""
    flops, shape, lines = row["flops"], "x".join(map(str, row["flops"]["rehearsed"])), []
    if flops["scaled"]:
        lines.append(
            f"{row['method']}: FLOPs and bytes are those of images of {shape}, FLOPs times how many of them make one "
            f"of the right size; by shape they cannot be counted, {flops['scaled']}."
        )
    elif flops["by_value"]:
        lines.append(f"{row['method']}: numbers of clusters, pixels and the like are those of noise of {shape}.")
    return lines


def _bytes(way: dict[str, Any]) -> float:
    """Bytes in one direction."""
    measured: dict[str, int] | None = way["measured"]
    return mean(measured.values()) if measured else float(way["weights"] + way["declared"])


def _column(kind: str, numbers: Sequence[float | None]) -> tuple[str, list[str]]:
    """The unit of a column and its numbers, of which the largest has four digits; a dash for one that is unknown."""
    largest = max((number for number in numbers if number is not None), default=0.0)
    if kind.endswith("ratio"):
        factor, unit, decimals = 1.0, "", 2
    elif kind.startswith("time"):
        factor, unit, decimals = (0.001, "ms", 2) if largest < 100 else (1.0, "s", 1)
    else:
        factor, unit = _unit(largest)
        decimals = 4 - len(f"{largest / factor:.0f}") if unit else 0
    texts = ["-" if number is None else f"{number / factor:.{decimals}f}" for number in numbers]
    return unit + ("B" if kind.startswith("bytes") else ""), texts


def _short(number: float, what: str = "") -> str:
    """Four digits and a unit, in powers of 1000."""
    factor, unit = _unit(number)
    return f"{number / factor:#.4g} {unit}{what}" if unit else f"{number:.0f} {what}".rstrip()


def _unit(number: float) -> tuple[float, str]:
    """A power of 1000 with which a number has at most three digits before its point, and its letter."""
    powers = [(1000.0**power, unit) for power, unit in enumerate(("", "k", "M", "G", "T"))]
    return next((one for one in powers if number / one[0] < 999.95), powers[-1])
