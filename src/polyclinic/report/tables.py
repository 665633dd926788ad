"""Tables, read from run folders."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.core.wording import printable_line
from polyclinic.evaluation.metric_registry import Unit, known_metrics
from polyclinic.report.marks import STYLES, Mark, best_and_second, markdown_cell, markdown_text
from polyclinic.report.optimiser_steps import mean_steps
from polyclinic.report.statistics_words import p_number


@dataclass(frozen=True)
class Comparison:
    """Methods by sites. ``values[method][column]`` holds one number a seed, ``None`` where there is none."""

    metric: str
    methods: tuple[str, ...]
    sites: tuple[str, ...]
    values: dict[str, dict[str, list[float | None]]]
    missing: tuple[str, ...] = ()
    """Runs that are not finished, such as ``fedbn seed 1``."""
    reference: str = ""
    """The method that differences are to; the first one if it is empty."""
    p_values: Mapping[str, float | None] = field(default_factory=dict)
    """Of the averages' differences to the reference, by method; no column where it is empty."""
    words: tuple[str, ...] = ()
    """What is shown and what is not, a line a method, and what those lines are."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Optimiser steps of all sites together, by method, the mean over seeds; those that no run tells are left out."""

    @property
    def against(self) -> str:
        """The method that differences are to; the first one if the reference is not in the table."""
        return self.reference if self.reference in self.methods else self.methods[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Sites, then the average."""
        return (*self.sites, "average")

    def mean(self, method: str, column: str) -> float | None:
        """Mean over seeds."""
        known = [v for v in self.values[method][column] if v is not None]
        return mean(known) if known else None

    def deviation(self, method: str, column: str) -> float | None:
        """Standard deviation over seeds, from two seeds on."""
        known = [v for v in self.values[method][column] if v is not None]
        return stdev(known) if len(known) > 1 else None

    def difference(self, method: str, column: str = "average") -> float | None:
        """Mean minus that of the reference."""
        own, first = self.mean(method, column), self.mean(self.against, column)
        return None if own is None or first is None or method == self.against else own - first

    def steps_in(self, method: str, column: str) -> float | None:
        """The steps in a line of a CSV file: they are of all sites together, so that of the average has them."""
        return self.steps.get(method) if column == "average" else None

    def rows(self) -> list[list[str]]:
        """The cells as text; last the difference to the reference, and its p-value where there is one."""
        return [
            [
                method,
                *(value_text(self.mean(method, c), self.deviation(method, c), self.metric) for c in self.columns),
                _signed(self.difference(method), self.metric),
                *([_p_cell(self.p_values.get(method))] if self.p_values else []),
            ]
            for method in self.methods
        ]

    def marks(self) -> list[list[Mark]]:
        """Which of the cells of ``rows`` is the best of its column, and which the second."""
        by_column = [
            best_and_second({m: self.mean(m, column) for m in self.methods}, self.metric) for column in self.columns
        ]
        ends: list[Mark] = [""] * (len(self.header) - 1 - len(self.columns))
        return [["", *(found[method] for found in by_column), *ends] for method in self.methods]

    @property
    def header(self) -> list[str]:
        """Names of the columns of ``rows``."""
        return ["method", *self.columns, f"vs {self.against}", *(["p"] if self.p_values else [])]

    def to_markdown(self) -> str:
        """A Markdown table with a line that says what it shows; best values are bold, second ones underlined."""
        rows = [
            [markdown_cell(cell, mark) for cell, mark in zip(row, marks, strict=True)]
            for row, marks in zip(self.rows(), self.marks(), strict=True)
        ]
        words = "".join(f"- {markdown_text(line)}\n" for line in self.words)
        caption = markdown_text(self.caption)
        return f"{markdown_table([self.header, *rows])}\n\n{caption}\n" + (f"\n{words}" if words else "")

    @property
    def caption(self) -> str:
        """What the numbers are."""
        seeds = max(len(v["average"]) for v in self.values.values())
        unit = {"percent": " in %", "distance": " mean distance", "none": ""}[metric_unit(self.metric)]
        spread = "mean ± standard deviation over" if seeds > 1 else "of"
        gaps = f" Not finished: {', '.join(self.missing)}." if self.missing else ""
        return f"{self.metric}{unit}, {spread} {seeds} seed{'s' if seeds > 1 else ''}.{gaps}"

    def to_json(self) -> dict[str, Any]:
        """Plain data: the numbers of every seed, and what the table shows of them."""
        columns = {
            method: {
                column: {
                    "mean": self.mean(method, column),
                    "standard_deviation": self.deviation(method, column),
                    "difference": self.difference(method, column),
                    "seeds": self.values[method][column],
                }
                for column in self.columns
            }
            for method in self.methods
        }
        about = {"metric": self.metric, "reference": self.against, "caption": self.caption}
        return {**about, "methods": columns, "p_values": dict(self.p_values), "steps": dict(self.steps)}

    def to_csv(self) -> str:
        """One line a method and column, in full precision.

        The p-value is that of the average's difference, and steps are of all sites together: both are in its line.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["mean", "standard_deviation", "difference", "seeds", "reference", "p", "steps"]
        writer.writerow(["method", "column", "metric", *names])
        for method in self.methods:
            for column in self.columns:
                known = sum(v is not None for v in self.values[method][column])
                numbers = (one(method, column) for one in (self.mean, self.deviation, self.difference))
                p = self.p_values.get(method) if column == "average" else None
                steps = self.steps_in(method, column)
                writer.writerow([method, column, self.metric, *numbers, known, self.against, p, steps])
        return text.getvalue()


def markdown_table(rows: list[list[str]]) -> str:
    """Rows of cells as a Markdown table; the first row and the first column are names, which may hold anything."""
    header, *others = rows
    rows = [list(map(markdown_text, header)), *([markdown_text(row[0]), *row[1:]] for row in others)]
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def comparison_of(grid: Path, metric: str, partial: bool = False) -> Comparison:
    """Read the run folders of a grid; with ``partial`` runs may be missing, without they must not."""
    plan = read_json(grid / "grid.json")
    values: dict[str, dict[str, list[float | None]]] = {method: {} for method in plan["methods"]}
    sites: dict[str, None] = {}
    splits: dict[int, Any] = {}
    missing: list[str] = []
    summaries: list[tuple[str, Mapping[str, Any]]] = []
    for entry in plan["runs"]:
        path = grid / entry["folder"] / "summary.json"
        if not path.exists() and partial:
            missing.append(f"{entry['method']} seed {entry['seed']}")
            values[entry["method"]].setdefault("average", []).append(None)
            continue
        if not path.exists():
            raise PolyclinicError(f"{path}: this run is not finished; start the same compare command again.")
        summary = read_json(path)
        summaries.append((entry["method"], summary))
        sites |= dict.fromkeys(summary["sites"])
        split = summary.get("split_sha256")
        if splits.setdefault(entry["seed"], split) != split:
            raise PolyclinicError(
                f"{path}: was trained and tested on other images than the runs before it; "
                "the federation has changed, so start a new grid in another folder with --out."
            )
        by_column = {**summary["sites"], "average": summary["average"]}
        for column, metrics in by_column.items():
            values[entry["method"]].setdefault(column, []).append(metrics.get(metric))
    for by_column in values.values():
        for site in sites:
            by_column.setdefault(site, [])
    found = mean_steps(summaries)
    steps = {method: found[method] for method in values if method in found}
    return Comparison(metric, tuple(plan["methods"]), tuple(sites), values, tuple(missing), steps=steps)


def print_comparison(table: Comparison) -> None:
    """Show a comparison in the terminal."""
    console, unlimited = Console(), Console(width=10_000)
    shown = _laid_out(table, 8, " ±\n", folds=True)
    for name_width, plus_minus in (
        (10_000, " ± "), (18, " ± "), (12, " ± "), (18, " ±\n"), (12, " ±\n"), (8, " ±\n")
    ):  # fmt: skip
        whole = _laid_out(table, name_width, plus_minus)
        if unlimited.measure(whole).maximum <= console.width:
            shown = whole
            break
    console.print(shown)
    for line in table.words:
        console.print(line, markup=False, highlight=False)


def _laid_out(table: Comparison, name_width: int, plus_minus: str, folds: bool = False) -> Table:
    """Names in lines of ``name_width``; a column ``folds`` inside words only where nothing else fits."""
    # Few lines, so that four sites with their deviations come close to 80 columns.
    caption = Text(printable_line(table.caption))  # it may name runs
    shown = Table(caption=caption, caption_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(table.header):
        justify: Literal["left", "right"] = "right" if number else "left"
        shown.add_column(Text(in_lines(name, name_width)), justify=justify, overflow="fold", no_wrap=not folds)
    for (method, *cells), (_, *marks) in zip(table.rows(), table.marks(), strict=True):
        texts = (Text(cell.replace(" ± ", plus_minus), STYLES[mark]) for cell, mark in zip(cells, marks, strict=True))
        shown.add_row(Text(in_lines(method, name_width)), *texts)
    return shown


def in_lines(name: str, width: int) -> str:
    """A name in lines of about ``width``, broken before ``+``, ``-`` and ``(`` and after ``,``, ``_`` and blanks."""
    lines = [""]
    for piece in re.split(r"(?=[+(-])|(?<=[,_ ])", printable_line(name)):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.strip() for line in lines)


def metric_unit(metric: str) -> Unit:
    """The unit of a metric, or of its value for one class; none where a plugin that is not imported brought it."""
    entry = known_metrics().get(metric.split("/")[0])
    return "none" if entry is None else entry.unit


def metric_scale(metric: str) -> float:
    """What a value is multiplied by for people."""
    entry = known_metrics().get(metric.split("/")[0])
    return 1.0 if entry is None else entry.scale


def value_text(value: float | None, deviation: float | None, metric: str) -> str:
    """A mean and its deviation for people: overlaps in %, all else as it is."""
    if value is None:
        return "-"
    shown = f"{value * metric_scale(metric):.2f}"
    return shown if deviation is None else f"{shown} ± {deviation * metric_scale(metric):.2f}"


def _p_cell(p: float | None) -> str:
    return "" if p is None else p_number(p)


def _signed(value: float | None, metric: str) -> str:
    return "" if value is None else f"{value * metric_scale(metric):+.2f}"
