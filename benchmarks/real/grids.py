"""One table of a page: a grid of runs on one federation, with its statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from federations import make, place
from sections import gap_closed, last_validation, part_of, percent, trained_out, units_of

import polyclinic
from polyclinic.core.files import read_json
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe
from polyclinic.report.grid_cases import read_cases
from polyclinic.report.overview import overview_rows, write_tables
from polyclinic.report.statistics import statistics_of
from polyclinic.report.tables import comparison_of, markdown_table
from polyclinic.runs.grid_plan import Cell, GridPlan, plan_grid

HERE = Path(__file__).parent
_FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Grid:
    """Methods compared on one federation, with the reference or the first one; ``changes`` are keys of the recipe."""

    name: str
    title: str
    recipe: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    changes: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tables of some of the methods, by title; without any there is one of all."""
    reference: str = ""
    differences: tuple[tuple[str, str], ...] = ()
    """Further pairs of methods, the second taken from the first: claims that are not about the reference."""
    advises: bool = True
    """Whether `polyclinic advise` takes it as evidence: a test of methods, with a network that it would advise."""

    def recipe_on(self, data: Path) -> Recipe:
        """The recipe with its federation in the folder ``data``."""
        path = HERE / "recipes" / f"{self.recipe}.toml"
        overrides = [f"{key}={json.dumps(value)}" for key, value in self.changes.items()]
        name = Path(load_recipe(path, overrides).federation).name
        return load_recipe(path, [*overrides, f"federation={place(name, data)}"])

    def run(self, data: Path, folder: Path, jobs: int | None, most_seeds: int | None = None) -> None:
        """Train what is missing, with the first ``most_seeds`` seeds alone if that is given."""
        recipe, seeds = self.recipe_on(data), self.seeds[:most_seeds]
        make(Path(recipe.federation).name, data)
        polyclinic.compare(recipe, self.methods, out=folder / self.name, seeds=seeds, jobs=jobs)

    def plan(self, data: Path, out: Path) -> GridPlan:
        """The runs of this grid below ``out``."""
        return plan_grid(self.recipe_on(data), self.methods, self.seeds, out)

    def finished_rows(self, data: Path, out: Path) -> Grid | None:
        """This grid with the methods whose seeds are all done below ``out``; None without the reference and another.

        A grid of more than three seeds begins to show with three, of all rows that have them.
        """
        done = {(cell.method, cell.seed) for cell in self.plan(data, out).cells if is_done(cell)}
        for count in range(len(self.seeds), min(_FEWEST_SEEDS, len(self.seeds)) - 1, -1):
            seeds = self.seeds[:count]
            rows = tuple(method for method in self.methods if {(method, seed) for seed in seeds} <= done)
            if (self.reference or self.methods[0]) in rows and len(rows) >= min(2, len(self.methods)):
                parts = {title: tuple(m for m in methods if m in rows) for title, methods in self.parts.items()}
                parts = {title: methods for title, methods in parts.items() if methods}
                pairs = tuple(pair for pair in self.differences if set(pair) <= set(rows))
                return replace(self, methods=rows, parts=parts, seeds=seeds, differences=pairs)
        return None

    def scores(self, data: Path, folder: Path, method: str) -> list[float]:
        """Average test Dice of a method in %, by seed; nothing before three are done, or if it has no row here."""
        cells = [cell for cell in self.plan(data, folder / self.name).cells if cell.method == method]
        ready = list(takewhile(is_done, cells))
        if not cells or len(ready) < min(_FEWEST_SEEDS, len(cells)):
            return []
        return [100 * read_json(cell.folder / "summary.json")["average"]["dice"] for cell in ready]

    def section(self, data: Path, folder: Path) -> list[str]:
        """Everything about this grid, whose runs are all done, from their folders."""
        out, recipe = folder / self.name, self.recipe_on(data)
        plan = self.plan(data, out)
        plan.save()
        runs = {m: [cell.folder for cell in plan.cells if cell.method == m] for m in self.methods}
        metrics = recipe.evaluation.metrics
        compared = write_tables(out, metrics[0], metrics, reference=self.reference or None)
        lines = [f"## {self.title}", ""]
        lines += [f"Recipe: [{self.recipe}.toml](recipes/{self.recipe}.toml){self._changes()}.", ""]
        if self.parts:
            for title, methods in self.parts.items():
                lines += [f"### {title}", "", part_of(compared, methods).to_markdown()]
            lines += [
                f"### All methods against `{compared.against}`",
                "",
                *(f"- {words}" for words in compared.words),
                "",
            ]
        else:
            lines += [compared.to_markdown()]
        if len(metrics) > 1:
            tables = [comparison_of(out, metric) for metric in metrics]
            lines += ["### All metrics", "", markdown_table(overview_rows(tables)), ""]
            lines += [f"Averages over sites; overlaps in %, distances in {units_of(runs)}.", ""]
        return [*lines, *self._differences(out, metrics[0]), *gap_closed(compared), *trained_out(runs, recipe)]

    def _differences(self, out: Path, metric: str) -> list[str]:
        """Intervals of the further pairs, over cases and seeds."""
        if not self.differences:
            return []
        cases, lines = read_cases(out), []
        for method, other in self.differences:
            found = statistics_of(replace(cases, methods=(other, method)), metric).methods[method]
            assert found.difference is not None
            assert found.interval is not None
            low, high = 100 * found.interval.low, 100 * found.interval.high
            lines.append(f"- {method} against {other}: {100 * found.difference:+.2f} [{low:.2f}, {high:.2f}]")
        return ["### Other differences", "", *lines, "", "Intervals as above, without correction for their number.", ""]

    def _changes(self) -> str:
        said = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in self.changes.items())
        return f", with {said}" if said else ""


@dataclass(frozen=True)
class Trial(Grid):
    """Runs compared on validation data alone, with seeds that no table has."""

    seeds: tuple[int, ...] = (100, 101)
    advises: bool = False

    def section(self, data: Path, folder: Path) -> list[str]:
        """Validation Dice of every row after the last round; test scores are not read."""
        plan = self.plan(data, folder / self.name)
        plan.save()
        fitted = self.recipe_on(data).evaluation.training_images
        head = ["tried", *(f"seed {seed}" for seed in self.seeds)]
        rows = [[*head, *(["mean"] if len(self.seeds) > 1 else []), *(["train"] if fitted else [])]]
        for method in self.methods:
            runs = [cell.folder for cell in plan.cells if cell.method == method]
            found = [last_validation(run) for run in runs]
            cells = [percent([value]) for value in found] + ([percent(found)] if len(found) > 1 else [])
            dice = [read_json(run / "summary.json")["training_dice"]["average"] for run in runs] if fitted else []
            rows.append([method, *cells, *([percent(dice)] if fitted else [])])
        said = ", and that of the last model on its training images (`train`)" if fitted else ""
        return [
            f"## {self.title}", "",
            f"Recipe: [{self.recipe}.toml](recipes/{self.recipe}.toml){self._changes()}.",
            "", markdown_table(rows), "", f"Validation Dice after the last round{said}, in %.", "",
        ]  # fmt: skip


class Search(Trial):
    """Settings of one method, the default first."""


def is_done(cell: Cell) -> bool:
    return (cell.folder / "summary.json").exists()
