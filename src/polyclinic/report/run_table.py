"""The result of one run in the terminal: scores by site, tests after rounds, transfer between sites, what left."""

from __future__ import annotations

from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyclinic.core.wording import printable_line, readable_bytes
from polyclinic.report.late_rise import late_rise_words
from polyclinic.report.tables import metric_unit, value_text


def print_run(summary: dict[str, Any]) -> None:
    """Show one run in the terminal: a row a site, a column a metric."""
    columns = [name for name in summary["average"] if "/" not in name]
    spread = summary.get("deviation", {"sites": {}, "average": {}})
    shown = _metric_table("site", columns)
    for site, values in summary["sites"].items():
        shown.add_row(Text(printable_line(site)), *_cells(values, spread["sites"].get(site, {}), columns))
    shown.add_row("average", *_cells(summary["average"], spread["average"], columns))
    console = Console(highlight=False)
    console.print(f"{summary['method']} on {summary['federation']}, seed {summary['seed']}", markup=False)
    console.print(shown)
    repeats = f"mean ± standard deviation of {len(summary['repeats'])} splits, " if "repeats" in summary else ""
    console.print(repeats + _units(columns, summary["distances"]))
    if "training_dice" in summary:
        average = value_text(summary["training_dice"]["average"], None, "dice")
        console.print(f"Dice on the sites' own training images: {average}")
    if rising := late_rise_words([(str(summary["method"]), summary)]):
        console.print(rising, markup=False)
    if "at_rounds" in summary:
        console.print("Average over sites after a round")
        console.print(_rounds_table(summary["at_rounds"], columns))
    for part, matrix in summary.get("transfer", {}).items():
        where = "" if part == "all" else f", {printable_line(part)}"
        console.print(f"Dice of each site's model (row) at each site (column){where}", markup=False)
        console.print(_transfer_table(matrix))
    up, down = (readable_bytes(summary[f"bytes_{way}"]) for way in ("up", "down"))
    for component, sites in summary.get("shared_up", {}).items():
        console.print(_shared_line(component, list(sites.values())), markup=False)
    if "privacy" in summary:
        console.print(f"privacy: {summary['privacy']['says']}", highlight=False, markup=False, soft_wrap=True)
    moved = "every image was pooled in one place" if summary["images_leave"] else f"{up} left the sites, {down} came in"
    console.print(f"{moved}, {summary['seconds']:.0f} s", highlight=False)


def _metric_table(first: str, columns: list[str]) -> Table:
    """An empty table with a column for each metric."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _cells(values: dict[str, Any], deviations: dict[str, Any], columns: list[str]) -> list[str]:
    # Many metrics with their deviations are too wide for a terminal.
    plus_minus = " ±\n" if len(columns) > 4 else " ± "
    cells = (value_text(values.get(name), deviations.get(name), name) for name in columns)
    return [cell.replace(" ± ", plus_minus) for cell in cells]


def _rounds_table(at_rounds: dict[str, Any], columns: list[str]) -> Table:
    """The averages of the tests after rounds, a row a round."""
    table = _metric_table("round", columns)
    for number, scores in at_rounds.items():
        table.add_row(number, *_cells(scores["average"], scores.get("deviation", {}).get("average", {}), columns))
    return table


def _shared_line(component: str, amounts: list[dict[str, float]]) -> str:
    """What a component shared, in one line."""
    size = readable_bytes(mean(a["bytes"] for a in amounts))
    counts = [a["prototypes"] for a in amounts if "prototypes" in a]
    prototypes = f"{mean(counts):.2f} prototypes, " if counts else ""
    return f"{component}: {prototypes}{size} from a site in a round"


def _units(columns: list[str], distances: str) -> str:
    """What the numbers of a run's table are."""
    words = {"percent": "overlaps in %", "distance": f"distances in {distances}"}
    units = {metric_unit(name) for name in columns}
    return ", ".join(text for unit, text in words.items() if unit in units)


def _transfer_table(matrix: dict[str, dict[str, float | None]]) -> Table:
    sites = list(dict.fromkeys(site for row in matrix.values() for site in row))
    table = Table("model of")
    for site in sites:
        table.add_column(Text(printable_line(site)), justify="right", overflow="fold")
    for model, row in matrix.items():
        table.add_row(Text(printable_line(model)), *(value_text(row.get(site), None, "dice") for site in sites))
    return table
