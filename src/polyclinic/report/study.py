"""The tables of a study, read from its grids."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polyclinic.core.files import read_json, write_text
from polyclinic.report.marks import markdown_text
from polyclinic.report.optimiser_steps import steps_by_value
from polyclinic.report.stuck_runs import run_summaries, stuck_words
from polyclinic.report.tables import Comparison, comparison_of, markdown_table, metric_unit, value_text

_BUDGET = "data.labelled"


@dataclass(frozen=True)
class StudyTable:
    """Methods by values of one key, or by pairs of values of two. ``tables`` holds a comparison for each value.

    A pair is written ``0.1, 5``, and ``key`` names both keys the same way; ``axes`` then holds the values of each.
    ``fixed`` holds, for each value, methods that do not depend on the number of labels.
    """

    key: str
    metric: str
    methods: tuple[str, ...]
    values: tuple[str, ...]
    tables: Mapping[str, Comparison]
    fixed: Mapping[str, Comparison] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stuck: str = ""
    """Which runs found nothing for long."""

    def of(self, method: str, value: str) -> Comparison:
        """The comparison that holds a method's numbers for a value."""
        return self.fixed[value] if self.stands_still(method) else self.tables[value]

    def stands_still(self, method: str) -> bool:
        """Whether a method does not depend on the number of labels, which is a key of the study."""
        return any(method in table.methods for table in self.fixed.values())

    def mean(self, method: str, value: str, column: str = "average") -> float | None:
        """Mean over seeds."""
        return self.of(method, value).mean(method, column)

    def deviation(self, method: str, value: str, column: str = "average") -> float | None:
        """Standard deviation over seeds, from two seeds on."""
        return self.of(method, value).deviation(method, column)

    def rows(self) -> list[list[str]]:
        """A header, then a row a method: the average over sites for every value."""
        rows = [["method", *(f"{self.key}={self.values[0]}", *self.values[1:])]]
        return [*rows, *([method, *(self._cell(method, value) for value in self.values)] for method in self.methods)]

    def matrix(self, method: str) -> list[list[str]]:
        """The averages of a method: the second key's values as a header, then a row for each of the first."""
        (first, downwards), (second, across) = self.axes.items()
        rows = [[first, *(f"{second}={across[0]}", *across[1:])]]
        return [*rows, *([one, *(self._cell(method, f"{one}, {other}") for other in across)] for one in downwards)]

    def _cell(self, method: str, value: str) -> str:
        return value_text(self.mean(method, value), self.deviation(method, value), self.metric)

    def titled_tables(self) -> dict[str, list[list[str]]]:
        """What is shown: one table without a title, or with two keys one for each method."""
        return {method: self.matrix(method) for method in self.methods} if self.axes else {"": self.rows()}

    @property
    def missing(self) -> tuple[str, ...]:
        """Runs that are not finished, such as ``data.labelled=5 fedbn seed 1``."""
        names = [f"{self.key}={value} {run}" for value, table in self.tables.items() for run in table.missing]
        return (*dict.fromkeys(run for table in self.fixed.values() for run in table.missing), *names)

    @property
    def caption(self) -> str:
        """What the numbers are."""
        first = self.of(self.methods[0], self.values[0])
        notes = [f"Average over sites: {replace(first, missing=()).caption}"]
        if self.missing:
            notes.append(f"Not finished: {', '.join(self.missing)}.")
        if still := [method for method in self.methods if self.stands_still(method)]:
            other = "".join(f" for each {key}" for key in self.axes if key != _BUDGET)
            notes.append(f"{', '.join(still)}: does not depend on {_BUDGET}, and ran once{other}.")
        return " ".join(notes)

    def to_markdown(self) -> str:
        """Markdown tables with a line that says what they show."""
        tables = self.titled_tables().items()
        shown = "\n\n".join(
            f"### {title}\n\n{markdown_table(t)}" if title else markdown_table(t) for title, t in tables
        )
        words = "".join(f"- {markdown_text(line)}\n" for line in self.words)
        return f"{shown}\n\n{self.caption}\n" + (f"\n{words}" if words else "")

    @property
    def words(self) -> tuple[str, ...]:
        """What one must know of the training behind the rows, a line each."""
        steps = {
            point: {method: count for method in self.methods if (count := self._steps(method, value)) is not None}
            for value, point in self._points()
        }
        return tuple(line for line in (steps_by_value(self._keys, steps), self.stuck) if line)

    def _steps(self, method: str, value: str, column: str = "average") -> float | None:
        return self.of(method, value).steps_in(method, column)

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(self.axes or (self.key,))

    def _points(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each value with the values of the keys that it consists of."""
        axes = self.axes or {self.key: self.values}
        return zip(self.values, product(*axes.values()), strict=True)

    def _numbers(self, method: str, value: str, column: str) -> dict[str, Any]:
        """In full precision, those of every seed last."""
        mean, deviation = self.mean(method, value, column), self.deviation(method, value, column)
        return {"mean": mean, "standard_deviation": deviation, "seeds": self.of(method, value).values[method][column]}

    def to_csv(self) -> str:
        """One line a value, method and column, in full precision; steps of all sites together are in the average's."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self._keys, "method", "column", "metric", "mean", "standard_deviation", "seeds", "steps"])
        for value, point in self._points():
            for method in self.methods:
                for column in self.of(method, value).columns:
                    numbers = self._numbers(method, value, column)
                    known = sum(number is not None for number in numbers["seeds"])
                    shown = (numbers["mean"], numbers["standard_deviation"], known, self._steps(method, value, column))
                    writer.writerow([*point, method, column, self.metric, *shown])
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        rows = [
            {
                "values": dict(zip(self._keys, point, strict=True)),
                "method": method,
                "sites": {site: self._numbers(method, value, site) for site in self.of(method, value).sites},
                "average": self._numbers(method, value, "average"),
                "steps": self._steps(method, value),
            }
            for value, point in self._points()
            for method in self.methods
        ]
        about = {"metric": self.metric, "unit": metric_unit(self.metric), "caption": self.caption}
        listed = {"keys": list(self._keys), "methods": list(self.methods), "rows": rows}
        return {**about, **listed, "not_finished": list(self.missing), "words": list(self.words)}

    def write(self, folder: Path) -> None:
        """``study.md``, ``study.csv``, and pictures (``study_figures.py``)."""
        from polyclinic.report.study_figures import draw_study

        write_text(folder / "study.md", self.to_markdown())
        write_text(folder / "study.csv", self.to_csv())
        draw_study(self, folder)

    def show(self) -> None:
        """Print the tables."""
        console = Console(highlight=False)
        for number, (title, (header, *rows)) in enumerate(self.titled_tables().items()):
            if number:
                console.print()
            shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
            for place, name in enumerate(header):
                shown.add_column(escape(name), justify="right" if place else "left", overflow="fold")
            for row in rows:
                shown.add_row(*map(escape, row))
            if title:
                console.print(title, markup=False)
            console.print(shown)
        for line in (self.caption, *self.words):
            console.print(line, markup=False)


def study_of(folder: Path, metric: str, partial: bool = False) -> StudyTable:
    """Read the grids of a study; with ``partial`` runs may be missing."""
    plan = read_json(folder / "study.json")

    @cache
    def grid(name: str) -> Comparison:
        return comparison_of(folder / name, metric, partial)

    fixed = plan["fixed"] or {}
    if isinstance(fixed, str):  # one key: one grid for all values
        fixed = dict.fromkeys(plan["values"], fixed)
    names = dict.fromkeys([*fixed.values(), *plan["grids"].values()])
    runs = [(f"{run} in {name}", facts) for name in names for run, facts in run_summaries(folder / name)]
    return StudyTable(
        plan["key"], metric, tuple(plan["methods"]), tuple(plan["values"]),
        {value: grid(name) for value, name in plan["grids"].items()},
        {value: grid(name) for value, name in fixed.items()},
        {key: tuple(values) for key, values in plan.get("axes", {}).items()},
        stuck_words(runs),
    )  # fmt: skip
