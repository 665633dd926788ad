"""A page of tables on real federations: one or several grids of runs, what was measured, and what it teaches."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from records import keep, restore

import polyclinic
from polyclinic.core.files import read_json, write_text
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe
from polyclinic.report.grid_cases import read_cases
from polyclinic.report.overview import overview_rows, write_tables
from polyclinic.report.statistics import statistics_of
from polyclinic.report.tables import Comparison, comparison_of, markdown_table
from polyclinic.runs.grid_plan import Cell, GridPlan, plan_grid

HERE = Path(__file__).parent
REFERENCES = (("local", "central"), ("fl_lower", "fl_upper"))
"""What bounds a method from below and from above, where a table has both."""


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
        return load_recipe(path, [*overrides, f"federation={data / name}"])

    def run(self, data: Path, folder: Path, jobs: int | None, most_seeds: int | None = None) -> None:
        """Train what is missing, with the first ``most_seeds`` seeds alone if that is given."""
        seeds = self.seeds[:most_seeds]
        polyclinic.compare(self.recipe_on(data), self.methods, out=folder / self.name, seeds=seeds, jobs=jobs)

    def plan(self, data: Path, out: Path) -> GridPlan:
        """The runs of this grid below ``out``."""
        return plan_grid(self.recipe_on(data), self.methods, self.seeds, out)

    def finished_rows(self, data: Path, out: Path) -> Grid | None:
        """This grid with the methods whose seeds are all done below ``out``; None without the reference and another.

        A grid of more than three seeds begins to show with three, of all rows that have them.
        """
        done = {(cell.method, cell.seed) for cell in self.plan(data, out).cells if _is_done(cell)}
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
        ready = list(takewhile(_is_done, cells))
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
                lines += [f"### {title}", "", _part(compared, methods).to_markdown()]
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
            lines += [f"Averages over sites; overlaps in %, distances in {_units(runs)}.", ""]
        return [*lines, *self._differences(out, metrics[0]), *gap_closed(compared), *_training(runs, recipe)]

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
            cells = [_percent([value]) for value in found] + ([_percent(found)] if len(found) > 1 else [])
            dice = [read_json(run / "summary.json")["training_dice"]["average"] for run in runs] if fitted else []
            rows.append([method, *cells, *([_percent(dice)] if fitted else [])])
        said = ", and that of the last model on its training images (`train`)" if fitted else ""
        return [
            f"## {self.title}", "",
            f"Recipe: [{self.recipe}.toml](recipes/{self.recipe}.toml){self._changes()}.",
            "", markdown_table(rows), "", f"Validation Dice after the last round{said}, in %.", "",
        ]  # fmt: skip


class Search(Trial):
    """Settings of one method, the default first."""


@dataclass(frozen=True)
class Page:
    """Grids in the order in which they run. ``NAME_notes.md`` says what the tables show, and ends the page."""

    name: str
    title: str
    about: tuple[str, ...]
    grids: tuple[Grid, ...]
    overall: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """One table of the whole page: for a row's title, and the title of a column, the grid and the method."""

    def make(
        self,
        data: Path,
        folder: Path,
        jobs: int | None,
        trained: Collection[str] = (),
        most_seeds: int | None = None,
    ) -> Path:
        """Restore recorded runs, train what these grids lack, record it after each of them, and write the page.

        What is finished of a grid that fails or is interrupted is recorded, too.
        """
        own, archive = folder / self.name, HERE / "records" / f"{self.name}.tar.xz"
        restore(archive, own, data)
        for grid in (grid for grid in self.grids if grid.name in trained):
            try:
                grid.run(data, own, jobs, most_seeds)
            finally:
                keep(own, archive)
        page = HERE / f"{self.name}.md"
        write_text(page, self.text(data, own))
        return page

    def text(self, data: Path, folder: Path) -> str:
        """The page, from the runs below a folder."""
        lines = [f"# {self.title}", "", f"Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/real {self.name}`."]
        lines += [*self.about, ""]
        notes = HERE / f"{self.name}_notes.md"
        if notes.exists():
            lines += [notes.read_text(encoding="utf-8").strip(), ""]
        lines += self._overall(data, folder)
        missing = []
        for grid in self.grids:
            finished = grid.finished_rows(data, folder / grid.name)
            if finished is not None:
                lines += finished.section(data, folder)
            if finished is None or (finished.methods, finished.seeds) != (grid.methods, grid.seeds):
                rows = [f"`{method}`" for method in grid.methods if finished and method not in finished.methods]
                rows += [f"seed {seed}" for seed in grid.seeds if finished and seed not in finished.seeds]
                missing.append(f"- {grid.title}{': ' if rows else ''}{', '.join(rows)}")
        if missing:
            lines += ["## Not run yet", "", *missing, ""]
        lines += [f"The runs behind it, without weights: [records/{self.name}.tar.xz](records/{self.name}.tar.xz).", ""]
        return "\n".join(lines)

    def _overall(self, data: Path, folder: Path) -> list[str]:
        """Test Dice of the rows of ``overall``, mean and deviation over seeds; empty until three seeds ran."""
        if not self.overall:
            return []
        columns = list(dict.fromkeys(column for row in self.overall.values() for column in row))
        grids = {grid.name: grid for grid in self.grids}
        rows = [["", *columns]]
        for title, cells in self.overall.items():
            found = [
                _spread(grids[cells[c][0]].scores(data, folder, cells[c][1])) if c in cells else "" for c in columns
            ]
            rows.append([title, *found])
        return ["## Before and after", "", markdown_table(rows), "", "Test Dice in %, mean over sites.", ""]


def _is_done(cell: Cell) -> bool:
    return (cell.folder / "summary.json").exists()


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else ""


def events(run: Path) -> list[dict[str, Any]]:
    """What a run recorded, a round a line; nothing if it has not begun."""
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def last_validation(run: Path) -> float | None:
    """Validation Dice of a finished run's last round, mean over the parts of its protocol."""
    if not (run / "summary.json").exists():
        return None
    last = {event["part"]: event["validation"]["dice"] for event in events(run)}
    return mean(last.values())


def _units(runs: Mapping[str, list[Path]]) -> str:
    """What distances are in, as the runs settled it."""
    recipes = [run / "recipe.toml" for own in runs.values() for run in own if (run / "summary.json").exists()]
    units = {load_recipe(path).evaluation.units for path in recipes}
    return " and ".join(sorted({"pixel": "pixels"}.get(unit, unit) for unit in units))


def gap_closed(compared: Comparison) -> list[str]:
    """How much of the way from a lower reference to an upper one each method goes, where a table has both."""
    return [line for ends in REFERENCES for line in _gap(compared, *ends)]


def _gap(compared: Comparison, lower: str, upper: str) -> list[str]:
    if not {lower, upper} <= set(compared.methods):
        return []
    low, high = (compared.mean(method, "average") for method in (lower, upper))
    if low is None or high is None or high <= low:
        return []
    ends = {method for pair in REFERENCES for method in pair}
    between = {m: v for m in compared.methods if m not in ends and (v := compared.mean(m, "average"))}
    title = [f"### Between `{lower}` and `{upper}`", ""]
    if not between or max(between.values()) <= low:
        return [*title, f"Every method is below `{lower}`: there is no share of the gap to speak of.", ""]
    rows = [["method", "share of the gap"]]
    rows += [[method, f"{(value - low) / (high - low):.0%}"] for method, value in between.items()]
    return [
        *title, markdown_table(rows), "",
        f"Of the {100 * (high - low):.2f} points of Dice between the two references; means over seeds.", "",
    ]  # fmt: skip


def _part(compared: Comparison, methods: tuple[str, ...]) -> Comparison:
    """Some rows of a table, with differences to the first of them; statistics are for the whole."""
    values = {method: compared.values[method] for method in methods}
    return replace(compared, methods=methods, values=values, reference="", p_values={}, words=())


def _training(runs: Mapping[str, list[Path]], recipe: Recipe) -> list[str]:
    """Is it trained out? Validation Dice along the rounds, the last training loss, steps, and tests after rounds."""
    rounds, every = recipe.training.rounds, recipe.training.validate_every
    numbers = sorted({every * max(1, round(rounds * share / every)) for share in (0.25, 0.5, 0.75, 1)})
    tested = recipe.evaluation.rounds
    fitted = ["train"] if recipe.evaluation.training_images else []
    head = ["method", *(f"val {n}" for n in numbers), *fitted, "last loss", "steps", *(f"test {n}" for n in tested)]
    rows = [head]
    for method, folders in runs.items():
        finished = [run for run in folders if (run / "summary.json").exists()]
        if not finished:
            continue
        every_event = [event for run in finished for event in events(run)]
        cells = [_percent([e["validation"].get("dice") for e in every_event if e["round"] == n - 1]) for n in numbers]
        last = [e for e in every_event if e["round"] == rounds - 1]
        losses = [terms["segmentation"] for e in last for terms in e["losses"].values() if "segmentation" in terms]
        summaries = [read_json(run / "summary.json") for run in finished]
        cells += [_percent([s["training_dice"]["average"] for s in summaries])] if fitted else []
        cells += [f"{mean(losses):.3f}" if losses else "", str(max(summary["steps"] for summary in summaries))]
        cells += [_percent([s["at_rounds"][str(n)]["average"]["dice"] for s in summaries]) for n in tested]
        rows.append([method, *cells])
    return [
        "### Is it trained out?", "", markdown_table(rows), "",
        "Mean validation Dice over sites and seeds after so many rounds, Dice of the last model on its training images",
        "(`train`), mean supervised loss of the last round, optimiser steps of all sites and rounds, test Dice after",
        "rounds.", "",
    ]  # fmt: skip


def _percent(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.2f}" if known else ""
