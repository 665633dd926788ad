"""All metrics of a grid: the files of a comparison, and one table of the averages, what a paper's last columns show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyclinic.core.files import write_text
from polyclinic.report.critical_difference import write_diagrams
from polyclinic.report.grid_cases import read_cases
from polyclinic.report.late_rise import late_rise_words
from polyclinic.report.latex import latex_tables
from polyclinic.report.marks import STYLES, Mark, best_and_second, markdown_cell
from polyclinic.report.optimiser_steps import steps_words
from polyclinic.report.statistics import GridStatistics, statistics_of
from polyclinic.report.statistics_files import fairness_markdown, statistics_json, write_statistics
from polyclinic.report.stuck_runs import run_summaries, stuck_words
from polyclinic.report.tables import Comparison, comparison_of, in_lines, markdown_table, value_text


def all_metrics(grid: Path, first: str, metrics: Sequence[str], partial: bool = False) -> list[Comparison]:
    """The comparison of every measured metric, ``first`` at the front."""
    return [comparison_of(grid, metric, partial) for metric in dict.fromkeys((first, *metrics))]


def all_statistics(
    grid: Path, first: str, metrics: Sequence[str], reference: str | None = None
) -> list[GridStatistics]:
    """The statistics of every measured metric, ``first`` at the front; files of cases are read once."""
    cases = read_cases(grid)
    return [statistics_of(cases, metric, reference) for metric in dict.fromkeys((first, *metrics))]


def with_statistics(table: Comparison, statistics: GridStatistics, notes: Sequence[str] = ()) -> Comparison:
    """A comparison with differences to the reference, p-values and words; ``notes`` come last of the words."""
    p_values = {name: one.p_wilcoxon_holm for name, one in statistics.methods.items()}
    if not any(p is not None for p in p_values.values()):
        p_values = {}
    ranked = [statistics.ranks.sentence] if statistics.ranks and statistics.ranks.friedman_p is not None else []
    words = [*statistics.sentences, *ranked, *filter(None, [statistics.note]), *notes]
    return replace(table, reference=statistics.reference, p_values=p_values, words=tuple(words))


def _about_training(grid: Path, table: Comparison) -> list[str]:
    """What one must know of the training behind the rows: steps, what still rose, and runs that found nothing."""
    runs = list(run_summaries(grid))
    rising = late_rise_words((name.rpartition(" seed ")[0], summary) for name, summary in runs)
    return [line for line in (steps_words(table.steps), rising, stuck_words(runs)) if line]


def write_tables(
    grid: Path, metric: str, metrics: Sequence[str], partial: bool = False, reference: str | None = None
) -> Comparison:
    """Write the tables and statistics of a grid, all metrics in each file; the table of ``metric`` is given back.

    ``table.md``, ``table.csv`` and ``table.tex``, ``statistics.csv`` and ``statistics.json``, and the diagram of ranks
    where there are three methods. With ``partial`` the tables say which runs are missing.
    """
    plain = all_metrics(grid, metric, metrics, partial)
    statistics = all_statistics(grid, metric, metrics, reference)
    notes = _about_training(grid, plain[0])
    tables = [with_statistics(table, one, notes) for table, one in zip(plain, statistics, strict=True)]
    fairness = fairness_markdown(statistics[0])
    write_text(grid / "table.md", tables[0].to_markdown() + fairness + overview_markdown(tables))
    write_text(grid / "table.csv", overview_csv(tables))
    write_text(grid / "table.tex", latex_tables(tables))
    write_statistics(grid, statistics)
    write_diagrams(grid, statistics[0].ranks)
    return tables[0]


def comparison_json(grid: Path, metric: str, metrics: Sequence[str], reference: str | None = None) -> dict[str, Any]:
    """Everything that the files of a grid hold, as plain data: tables, statistics and words."""
    statistics = all_statistics(grid, metric, metrics, reference)
    plain = all_metrics(grid, metric, metrics)
    notes = _about_training(grid, plain[0])
    tables = [with_statistics(table, one, notes) for table, one in zip(plain, statistics, strict=True)]
    return {
        "folder": str(grid),
        "metric": metric,
        "words": tables[0].words,
        "tables": {table.metric: table.to_json() for table in tables},
        "statistics": statistics_json(statistics),
    }


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


def _overview_marks(tables: Sequence[Comparison]) -> list[list[Mark]]:
    """The marks of the cells of ``overview_rows`` below its header."""
    columns = [best_and_second({m: one.mean(m, "average") for m in one.methods}, one.metric) for one in tables]
    return [["", *(found[method] for found in columns)] for method in tables[0].methods]


_CAPTION = "Average over sites: overlaps in %, distances as in the runs."


def overview_markdown(tables: Sequence[Comparison]) -> str:
    """The overview, then the table of every further metric; nothing where there is one metric."""
    if len(tables) < 2:
        return ""
    header, *rows = overview_rows(tables)
    marked = [
        [markdown_cell(cell, mark) for cell, mark in zip(row, marks, strict=True)]
        for row, marks in zip(rows, _overview_marks(tables), strict=True)
    ]
    further = "\n".join(f"{table.to_markdown()}" for table in tables[1:])
    return f"\n{markdown_table([header, *marked])}\n\n{_CAPTION}\n\n{further}"


def overview_csv(tables: Sequence[Comparison]) -> str:
    """The lines of all metrics under one header."""
    head, *lines = tables[0].to_csv().splitlines(keepends=True)
    return "".join([head, *lines, *(line for one in tables[1:] for line in one.to_csv().splitlines(keepends=True)[1:])])


def print_overview(tables: Sequence[Comparison]) -> None:
    """Show the averages of all metrics in the terminal."""
    console, unlimited = Console(highlight=False), Console(width=10_000)
    for width, plus_minus in ((10_000, " ± "), (18, " ± "), (12, " ± "), (18, " ±\n"), (12, " ±\n")):
        shown = _laid_out(tables, width, plus_minus)
        if unlimited.measure(shown).maximum <= console.width:
            break
    console.print(shown)
    console.print(_CAPTION)


def _laid_out(tables: Sequence[Comparison], width: int, plus_minus: str) -> Table:
    """Names of methods in lines of ``width``."""
    header, *rows = overview_rows(tables)
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(header):
        shown.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for (method, *cells), (_, *marks) in zip(rows, _overview_marks(tables), strict=True):
        texts = (Text(cell.replace(" ± ", plus_minus), STYLES[mark]) for cell, mark in zip(cells, marks, strict=True))
        shown.add_row(Text(in_lines(method, width)), *texts)
    return shown
