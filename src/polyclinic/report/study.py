"""The table and the picture of a study, read from its grids."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

from rich.console import Console
from rich.table import Table

from polyclinic.core.files import atomic_write, read_json, write_text
from polyclinic.report.tables import Comparison, comparison_of, markdown_table, metric_scale, metric_unit, value_text


@dataclass(frozen=True)
class StudyTable:
    """Methods by values of one key. ``tables`` holds a comparison for each value.

    ``fixed`` holds methods that do not depend on the key; their numbers stand for every value.
    """

    key: str
    metric: str
    methods: tuple[str, ...]
    values: tuple[str, ...]
    tables: Mapping[str, Comparison]
    fixed: Comparison | None = None

    def of(self, method: str, value: str) -> Comparison:
        """The comparison that holds a method's numbers for a value."""
        return self.fixed if self.fixed is not None and method in self.fixed.methods else self.tables[value]

    def mean(self, method: str, value: str, column: str = "average") -> float | None:
        """Mean over seeds."""
        return self.of(method, value).mean(method, column)

    def deviation(self, method: str, value: str, column: str = "average") -> float | None:
        """Standard deviation over seeds, from two seeds on."""
        return self.of(method, value).deviation(method, column)

    def rows(self) -> list[list[str]]:
        """A header, then a row a method: the average over sites for every value."""
        rows = [["method", *(f"{self.key}={self.values[0]}", *self.values[1:])]]
        for method in self.methods:
            cells = ((self.mean(method, v), self.deviation(method, v)) for v in self.values)
            rows.append([method, *(value_text(mean, deviation, self.metric) for mean, deviation in cells)])
        return rows

    @property
    def missing(self) -> tuple[str, ...]:
        """Runs that are not finished, such as ``data.labelled=5 fedbn seed 1``."""
        names = [f"{self.key}={value} {run}" for value, table in self.tables.items() for run in table.missing]
        return (*(self.fixed.missing if self.fixed else ()), *names)

    @property
    def caption(self) -> str:
        """What the numbers are."""
        first = self.of(self.methods[0], self.values[0])
        notes = [f"Average over sites: {replace(first, missing=()).caption}"]
        if self.missing:
            notes.append(f"Not finished: {', '.join(self.missing)}.")
        if self.fixed is not None:
            notes.append(f"{', '.join(self.fixed.methods)}: does not depend on {self.key}, and ran once.")
        return " ".join(notes)

    def to_markdown(self) -> str:
        """A Markdown table with a line that says what it shows."""
        return f"{markdown_table(self.rows())}\n\n{self.caption}\n"

    def to_csv(self) -> str:
        """One line a value, method and column, in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.key, "method", "column", "metric", "mean", "standard_deviation", "seeds"])
        for value in self.values:
            for method in self.methods:
                comparison = self.of(method, value)
                for column in comparison.columns:
                    known = sum(v is not None for v in comparison.values[method][column])
                    numbers = comparison.mean(method, column), comparison.deviation(method, column)
                    writer.writerow([value, method, column, self.metric, *numbers, known])
        return text.getvalue()

    def draw(self, path: Path) -> None:
        """A line a method over the values, with bars of one standard deviation; dashed where the key says nothing."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        numbers = [_number(value) for value in self.values]
        numeric = all(number is not None for number in numbers)
        places = [n for n in numbers if n is not None] if numeric else list(map(float, range(len(self.values))))
        order = sorted(range(len(places)), key=places.__getitem__)
        places, values = [places[i] for i in order], [self.values[i] for i in order]
        scale = metric_scale(self.metric)
        for method in self.methods:
            scores = [self.mean(method, v) for v in values]
            means = [nan if mean is None else mean * scale for mean in scores]
            bars = [(self.deviation(method, v) or 0.0) * scale for v in values]
            still = self.fixed is not None and method in self.fixed.methods
            style = "--" if still else "-o"
            axes.errorbar(places, means, None if still else bars, fmt=style, capsize=3, markersize=4, label=method)
        axes.set_xticks(places, values)
        axes.set_xlabel(self.key)
        axes.set_ylabel(f"{self.metric}{' in %' if metric_unit(self.metric) == 'percent' else ''}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})

    def write(self, folder: Path) -> None:
        """``study.md``, ``study.csv`` and ``study.png``."""
        write_text(folder / "study.md", self.to_markdown())
        write_text(folder / "study.csv", self.to_csv())
        self.draw(folder / "study.png")

    def show(self) -> None:
        """Print the table."""
        header, *rows = self.rows()
        shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for number, name in enumerate(header):
            shown.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in rows:
            shown.add_row(*row)
        console = Console(highlight=False)
        console.print(shown)
        console.print(self.caption, markup=False)


def study_of(folder: Path, metric: str, partial: bool = False) -> StudyTable:
    """Read the grids of a study; with ``partial`` runs may be missing."""
    plan = read_json(folder / "study.json")
    tables = {value: comparison_of(folder / name, metric, partial) for value, name in plan["grids"].items()}
    fixed = comparison_of(folder / plan["fixed"], metric, partial) if plan["fixed"] else None
    return StudyTable(plan["key"], metric, tuple(plan["methods"]), tuple(plan["values"]), tables, fixed)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
