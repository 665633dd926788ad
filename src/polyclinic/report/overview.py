"""All metrics of a grid in one table: what a paper's last columns show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from polyclinic.core.files import write_text
from polyclinic.report.tables import Comparison, comparison_of, markdown_table, value_text


def all_metrics(grid: Path, first: str, metrics: Sequence[str], partial: bool = False) -> list[Comparison]:
    """The comparison of every measured metric, ``first`` at the front."""
    return [comparison_of(grid, metric, partial) for metric in dict.fromkeys((first, *metrics))]


def write_tables(grid: Path, metric: str, metrics: Sequence[str], partial: bool = False) -> Comparison:
    """Write ``table.md`` and ``table.csv`` of a grid, all metrics in both; the table of ``metric`` is given back.

    With ``partial`` the tables say which runs are missing.
    """
    tables = all_metrics(grid, metric, metrics, partial)
    write_text(grid / "table.md", tables[0].to_markdown() + overview_markdown(tables))
    write_text(grid / "table.csv", overview_csv(tables))
    return tables[0]


def overview_rows(tables: Sequence[Comparison]) -> list[list[str]]:
    """A header, then a row a method: the average over sites of every metric."""
    rows = [["method", *(table.metric for table in tables)]]
    for method in tables[0].methods:
        values = [
            value_text(table.mean(method, "average"), table.deviation(method, "average"), table.metric)
            for table in tables
        ]
        rows.append([method, *values])
    return rows


_CAPTION = "Average over sites: overlaps in %, distances as in the runs."


def overview_markdown(tables: Sequence[Comparison]) -> str:
    """The overview, then the table of every further metric; nothing where there is one metric."""
    if len(tables) < 2:
        return ""
    further = "\n".join(f"{table.to_markdown()}" for table in tables[1:])
    return f"\n{markdown_table(overview_rows(tables))}\n\n{_CAPTION}\n\n{further}"


def overview_csv(tables: Sequence[Comparison]) -> str:
    """The lines of all metrics under one header."""
    head, *lines = tables[0].to_csv().splitlines(keepends=True)
    return "".join([head, *lines, *(line for one in tables[1:] for line in one.to_csv().splitlines(keepends=True)[1:])])


def print_overview(tables: Sequence[Comparison]) -> None:
    """Show the averages of all metrics in the terminal."""
    header, *rows = overview_rows(tables)
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(header):
        shown.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console = Console(highlight=False)
    console.print(shown)
    console.print(_CAPTION)
