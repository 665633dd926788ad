"""What a report is about, read from the disk: the runs of a run folder, a comparison, a study or an ablation.

Runs may be missing or going on: what is there is read, and nothing is taken for granted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.evaluation.aggregate import Row, rows_from_csv
from polyclinic.report.tables import Comparison
from polyclinic.runs.folder import RunFolder

Kind = Literal["run", "comparison", "study", "ablation"]
_NEEDED = {"method", "federation", "protocol", "rounds", "sites", "average", "bytes_up", "bytes_down", "seconds"}


@dataclass(frozen=True)
class RunRecord:
    """One run of a report; ``summary`` is ``None`` until it is finished."""

    method: str
    seed: int
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """``summary.json``."""
        summary = RunFolder(self.folder).summary()
        if summary is not None and not (summary.keys() >= _NEEDED and isinstance(summary["sites"], dict)):
            raise PolyclinicError(
                f"{self.folder / 'summary.json'}: not the summary of a run; restore it, or run the recipe again."
            )
        return summary

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """One entry a finished round."""
        return RunFolder(self.folder).events()

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe's keys; none before the run has started."""
        file = RunFolder(self.folder).recipe_file
        if not file.exists():
            return {}
        try:
            return tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PolyclinicError(f"{file}: cannot be read ({error}); restore it from a copy.") from error

    @cached_property
    def cases(self) -> list[Row]:
        """Every metric of every case, of the model that the run is judged by; none before the test."""
        file = RunFolder(self.folder).cases_file
        return [row for row in rows_from_csv(file) if "model" not in row] if file.exists() else []

    def table(self, name: str) -> dict[str, Any]:
        """A file of plain data of the run, such as ``versions.json``; empty where there is none."""
        file = self.folder / name
        value = read_json(file) if file.exists() else {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Grid:
    """Methods x seeds on one recipe. ``title`` tells grids of a study apart."""

    title: str
    folder: Path
    methods: tuple[str, ...]
    runs: tuple[RunRecord, ...]
    reference: str

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, in the order of the runs."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @cached_property
    def finished(self) -> tuple[RunRecord, ...]:
        """Runs with a result."""
        return tuple(run for run in self.runs if run.summary is not None)

    def of(self, method: str) -> list[RunRecord]:
        """The runs of a method."""
        return [run for run in self.runs if run.method == method]

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that were tested or, before any test, that trained."""
        tested = dict.fromkeys(site for run in self.finished for site in (run.summary or {})["sites"])
        trained = dict.fromkeys(site for run in self.runs for event in run.events[:1] for site in event["sites"])
        return tuple(tested or trained)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """What was measured, without the entries of single classes."""
        names = dict.fromkeys(name for run in self.finished for name in (run.summary or {})["average"])
        return tuple(name for name in names if "/" not in name)

    def comparison(self, metric: str) -> Comparison:
        """Methods by sites; a run without a result counts as missing."""
        values: dict[str, dict[str, list[float | None]]] = {
            method: {column: [] for column in (*self.sites, "average")} for method in self.methods
        }
        for run in self.runs:
            by_site = {} if run.summary is None else {**run.summary["sites"], "average": run.summary["average"]}
            for column, numbers in values[run.method].items():
                numbers.append(by_site.get(column, {}).get(metric))
        missing = tuple(f"{run.method} seed {run.seed}" for run in self.runs if run.summary is None)
        return Comparison(metric, self.methods, self.sites, values, missing)


@dataclass(frozen=True)
class Results:
    """Everything that one page shows. ``plan`` is ``study.json`` or ``ablation.json``, where there is one."""

    kind: Kind
    folder: Path
    grids: tuple[Grid, ...]
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> RunRecord:
        """A run that stands for all where they agree: a finished one, else one that has started."""
        runs = [run for grid in self.grids for run in grid.runs]
        return next((r for r in runs if r.summary), next((r for r in runs if r.recipe), runs[0]))

    @property
    def finished(self) -> bool:
        """Whether every run has a result."""
        return all(run.summary is not None for grid in self.grids for run in grid.runs)


def read_results(folder: Path, reference: str | None = None) -> Results:
    """Find out what a folder holds; one that holds nothing of the kind gets a sentence."""
    if not folder.is_dir():
        raise PolyclinicError(f"{folder}: no such folder; give a run folder, or the folder of a compare or study.")
    if (folder / "study.json").exists():
        return _study(folder, reference)
    if (folder / "grid.json").exists():
        plan = _table(folder / "ablation.json") if (folder / "ablation.json").exists() else {}
        base = _base(folder, plan)
        listed = _table(folder / "grid.json").get("methods", ())
        if plan and not all(row.get("method") in listed for row in plan["rows"]):
            plan, base = {}, None  # a later comparison of other methods is what the folder's tables are of
        kind: Kind = "ablation" if plan else "comparison"
        return Results(kind, folder, (_grid(folder, reference, base=base),), plan)
    if not (RunFolder(folder).recipe_file.exists() and RunFolder(folder).begun()):
        raise PolyclinicError(
            f"{folder}: holds no run (recipe.toml, versions.json), no comparison (grid.json) and no study "
            "(study.json); give the folder that --out named."
        )
    recipe = RunRecord("", 0, folder).recipe
    run = RunRecord(str(recipe.get("method", "fedavg")), int(recipe.get("seed", 0)), folder)
    if reference not in (None, run.method):
        raise PolyclinicError(f"--reference {reference}: {folder} is one run, of {run.method}; leave it out.")
    return Results("run", folder, (Grid("", folder, (run.method,), (run,), run.method),))


def _table(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise PolyclinicError(f"{path}: expected a table; restore it, or start the same command again.")
    return value


def _base(folder: Path, plan: Mapping[str, Any]) -> str | None:
    """The row of an ablation that has none of the components: others are compared with it."""
    if not plan:
        return None
    try:
        rows = [str(row["method"]) for row in plan["rows"]]
        return rows[0]
    except (KeyError, TypeError, IndexError):
        raise PolyclinicError(f"{folder / 'ablation.json'}: not the plan of an ablation; start it again.") from None


def _grid(
    folder: Path, reference: str | None, title: str = "", fixed: Grid | None = None, base: str | None = None
) -> Grid:
    """A grid; ``fixed`` holds further methods of it that run once for several grids of a study."""
    path = folder / "grid.json"
    plan = _table(path)
    try:
        methods = tuple(map(str, plan["methods"]))
        runs = tuple(RunRecord(str(r["method"]), int(r["seed"]), folder / Path(r["folder"]).name) for r in plan["runs"])
    except (KeyError, TypeError, ValueError):
        raise PolyclinicError(f"{path}: not the plan of a comparison; start the same compare again.") from None
    if not runs or {run.method for run in runs} - set(methods):
        raise PolyclinicError(f"{path}: names no run, or one of an unknown method; start the same compare again.")
    if fixed is not None:
        methods, runs = (*methods, *fixed.methods), (*runs, *fixed.runs)
    if reference is not None and reference not in methods:
        raise PolyclinicError(f"--reference {reference}: not in {folder}; it has {', '.join(methods)}.")
    base = base if base in methods else methods[0]
    return Grid(title, folder, methods, runs, reference or base)


def value_title(plan: Mapping[str, Any], value: str) -> str:
    """A value of a study with its key; a pair of values, written ``0.1, 5``, with both.

    >>> value_title({"key": "a, b", "axes": {"a": [], "b": []}}, "0.1, 5")
    'a = 0.1, b = 5'
    """
    keys, values = list(plan.get("axes") or ()), value.split(", ")
    if len(keys) != len(values) or len(keys) < 2:
        return f"{plan['key']} = {value}"
    return ", ".join(f"{key} = {one}" for key, one in zip(keys, values, strict=True))


def _study(folder: Path, reference: str | None) -> Results:
    path = folder / "study.json"
    plan = _table(path)
    try:
        named = plan["fixed"] or {}  # one grid for all values, or with two keys one for each
        fixed = {
            value: _grid(folder / Path(name).name, None)
            for value, name in (named if isinstance(named, dict) else dict.fromkeys(plan["values"], named)).items()
        }
        grids = [
            _grid(folder / Path(name).name, reference, value_title(plan, value), fixed.get(value))
            for value, name in plan["grids"].items()
        ]
    except (KeyError, TypeError, AttributeError):
        raise PolyclinicError(f"{path}: not the plan of a study; start the same study again.") from None
    if not grids and not fixed:
        raise PolyclinicError(f"{path}: names no comparison; start the same study again.")
    return Results("study", folder, tuple(grids) or tuple(dict.fromkeys(fixed.values())), plan)
