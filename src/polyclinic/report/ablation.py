"""The table of an ablation, in the papers' layout: a column a component with check marks, then sites and averages."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_text
from polyclinic.core.wording import counted, printable_line
from polyclinic.report.ablation_latex import latex_ablation
from polyclinic.report.late_rise import late_rise_words
from polyclinic.report.marks import markdown_cell, markdown_text
from polyclinic.report.optimiser_steps import steps_words
from polyclinic.report.stuck_runs import run_summaries, stuck_words
from polyclinic.report.tables import (
    Comparison,
    comparison_of,
    in_lines,
    markdown_table,
    metric_scale,
    metric_unit,
    value_text,
)

CHECK = "✓"
# From wide to narrow: with the rows' names, with numbers for the components' names, what stands before a deviation, and
# how long a line of a site's name is.
_LAYOUTS = (
    (True, False, " ± ", 10_000),
    (False, False, " ± ", 10_000),
    (False, True, " ± ", 10_000),
    (False, True, " ±\n", 12),
    (False, True, " ±\n", 8),
)


@dataclass(frozen=True)
class AblationTable:
    """``kept`` holds, by a row's method expression, the ``components`` that the row keeps; the base comes first."""

    method: str
    components: tuple[str, ...]
    kept: Mapping[str, tuple[str, ...]]
    comparison: Comparison

    @property
    def metric(self) -> str:
        """What was measured."""
        return self.comparison.metric

    @property
    def base(self) -> str:
        """The row that keeps none of the components."""
        return next(iter(self.kept))

    def mean(self, row: str, column: str = "average") -> float | None:
        """Mean over seeds."""
        return self.comparison.mean(row, column)

    def difference(self, row: str, to: str, column: str = "average") -> float | None:
        """The mean of a row minus that of another; nothing for the row itself."""
        own, other = self.mean(row, column), self.mean(to, column)
        return None if own is None or other is None or row == to else own - other

    def contribution(self, component: str) -> tuple[float | None, int]:
        """What a component adds to the average: mean over pairs of rows that differ in it alone, and their number."""
        rows = {frozenset(kept): row for row, kept in self.kept.items()}
        found = [
            self.difference(row, rows[kept - {component}])
            for kept, row in rows.items()
            if component in kept and kept - {component} in rows
        ]
        known = [value for value in found if value is not None]
        return (mean(known) if known else None), len(known)

    @property
    def header(self) -> list[str]:
        """Names of the columns of ``rows``."""
        return ["method", *self.components, *self.comparison.columns, "vs base", "vs full"]

    def rows(self, yes: str = CHECK) -> list[list[str]]:
        """The cells as text, a row a subset."""
        columns, table = self.comparison.columns, self.comparison
        return [
            [
                row,
                *(yes if name in kept else "" for name in self.components),
                *(value_text(table.mean(row, c), table.deviation(row, c), self.metric) for c in columns),
                *(self._signed(self.difference(row, to)) for to in (self.base, self.method)),
            ]
            for row, kept in self.kept.items()
        ]

    def _signed(self, value: float | None) -> str:
        text = "" if value is None else f"{value * metric_scale(self.metric):+.2f}"
        return "+0.00" if text == "-0.00" else text

    def contributions(self) -> list[str]:
        """A sentence a component."""
        sentences = []
        for name in self.components:
            value, pairs = self.contribution(name)
            said = f"{self._signed(value)} on average over {counted(pairs, 'pair')} of rows that differ in it alone"
            sentences.append(f"{name}: {said if pairs else 'no pair of rows is finished'}.")
        return sentences

    @property
    def words(self) -> tuple[str, ...]:
        """What one must know of the training behind the rows, a line each."""
        return tuple(line for line in (steps_words(self.comparison.steps), *self.comparison.words) if line)

    @property
    def caption(self) -> str:
        """What the numbers are."""
        points = ", in percentage points" if metric_unit(self.metric) == "percent" else ""
        ends = f"base ({self.base}), with none of these components, and of full ({self.method}), with all"
        return f"{self.comparison.caption} vs: the average minus that of {ends}{points}."

    def to_markdown(self) -> str:
        """A Markdown table with the best values in bold, what it shows, and what each component adds."""
        first, columns = 1 + len(self.components), len(self.comparison.columns)
        rows = self.rows()
        for row, (_, *marks) in zip(rows, self.comparison.marks(), strict=True):
            cells = zip(row[first:], marks[:columns], strict=False)
            row[first : first + columns] = [markdown_cell(cell, mark) for cell, mark in cells]
        added = "\n".join(f"- {markdown_text(line)}" for line in (*self.contributions(), *self.words))
        return f"{markdown_table([self.header, *rows])}\n\n{self.caption}\n\n{added}\n"

    def to_csv(self) -> str:
        """One line a row and column, in full precision; a component is 1 where the row keeps it."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        numbers = ("mean", "standard_deviation", "difference_to_base", "difference_to_full")
        writer.writerow(["method", *self.components, "column", "metric", *numbers, "seeds", "steps"])
        for row, kept in self.kept.items():
            flags = [int(name in kept) for name in self.components]
            for column in self.comparison.columns:
                entry = self._entry(row, column)
                known = sum(value is not None for value in entry["seeds"])
                cells = (column, self.metric, *(entry[name] for name in numbers), known)
                writer.writerow([row, *flags, *cells, self.comparison.steps_in(row, column)])
        return text.getvalue()

    def _entry(self, row: str, column: str) -> dict[str, Any]:
        """The numbers of a cell, in full precision, those of every seed last."""
        return {
            "mean": self.mean(row, column),
            "standard_deviation": self.comparison.deviation(row, column),
            "difference_to_base": self.difference(row, self.base, column),
            "difference_to_full": self.difference(row, self.method, column),
            "seeds": self.comparison.values[row][column],
        }

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        contributions = {name: self.contribution(name) for name in self.components}
        return {
            "metric": self.metric,
            "unit": metric_unit(self.metric),
            "caption": self.caption,
            "method": self.method,
            "base": self.base,
            "components": list(self.components),
            "rows": [
                {
                    "method": row,
                    "components": list(kept),
                    "sites": {site: self._entry(row, site) for site in self.comparison.sites},
                    "average": self._entry(row, "average"),
                    "steps": self.comparison.steps.get(row),
                }
                for row, kept in self.kept.items()
            ],
            "contributions": {name: {"mean": value, "pairs": n} for name, (value, n) in contributions.items()},
            "not_finished": list(self.comparison.missing),
            "words": list(self.words),
        }

    def write(self, folder: Path) -> None:
        """``ablation.md``, ``ablation.csv`` and ``ablation.tex``."""
        write_text(folder / "ablation.md", self.to_markdown())
        write_text(folder / "ablation.csv", self.to_csv())
        write_text(folder / "ablation.tex", latex_ablation(self))

    def show(self) -> None:
        """Print the table."""
        console, unlimited = Console(highlight=False), Console(width=10_000)
        # The check marks say what a row is, so its name goes first where there is no room for all.
        for names, numbered, plus_minus, width in _LAYOUTS:
            shown = self._laid_out(names, numbered, plus_minus, width)
            if unlimited.measure(shown).maximum <= console.width:
                break
        console.print(shown)
        legend = ", ".join(f"({number}) {name}" for number, name in enumerate(self.components, start=1))
        for line in (*([legend] if numbered else []), self.caption, *self.contributions(), *self.words):
            console.print(line, markup=False)

    def _laid_out(self, names: bool, numbered: bool, plus_minus: str, width: int) -> Table:
        """With the rows' names or without; components by name, or ``numbered``; sites in lines of ``width``."""
        shown, first = Table(box=None, padding=(0, 2, 0, 0), header_style="bold"), 0 if names else 1
        for number, name in enumerate(self.header[first:], start=first):
            marks = 0 < number <= len(self.components)
            justify: Literal["left", "center", "right"] = "center" if marks else "right" if number else "left"
            title = f"({number})" if marks and numbered else in_lines(name, width)
            shown.add_column(Text(title), justify=justify, overflow="fold")
        for cells in self.rows():
            shown.add_row(*(Text(printable_line(cell).replace(" ± ", plus_minus)) for cell in cells[first:]))
        return shown


def ablation_of(folder: Path, metric: str, partial: bool = False) -> AblationTable:
    """Read the runs of an ablation; with ``partial`` some may be missing."""
    plan = read_json(folder / "ablation.json")
    kept = {row["method"]: tuple(row["components"]) for row in plan["rows"]}
    table = comparison_of(folder, metric, partial=True)
    if any(row not in table.methods for row in kept):
        raise PolyclinicError(f"{folder / 'grid.json'}: lists other methods; start the same ablate command again.")
    # A comparison in the same folder may have methods, and gaps, of its own.
    missing = tuple(run for run in table.missing if run.rpartition(" seed ")[0] in kept)
    if missing and not partial:
        raise PolyclinicError(f"{folder}: {missing[0]} is not finished; start the same ablate command again.")
    runs = [(run, facts) for run, facts in run_summaries(folder) if run.rpartition(" seed ")[0] in kept]
    rising = late_rise_words((run.rpartition(" seed ")[0], facts) for run, facts in runs)
    own = replace(
        table,
        methods=tuple(kept),
        values={row: table.values[row] for row in kept},
        missing=missing,
        words=tuple(line for line in (rising, stuck_words(runs)) if line),
        steps={row: table.steps[row] for row in kept if row in table.steps},
    )
    return AblationTable(plan["method"], tuple(plan["components"]), kept, own)
