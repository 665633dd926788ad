"""The values of cases in all finished runs of a grid, and those of two methods in pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.files import read_json
from polyclinic.evaluation.aggregate import Row, are_numbered, named_case_values, rows_from_csv

Array = npt.NDArray[np.float64]
Key = tuple[str, str, str]
"""Part of the protocol (empty unless several parts test a case), site and case."""


@dataclass(frozen=True)
class RunCases:
    """One finished run. ``cases[metric]`` has the value of every case, NaN where the policy leaves it out."""

    summary: Mapping[str, Any]
    cases: Mapping[str, Mapping[Key, float]]
    numbered: bool
    """Whether some site has numbers in place of its cases' names (its policy's ``per_case_metrics``)."""

    def average(self, metric: str) -> float | None:
        """The average over sites of the run's own table."""
        value: float | None = self.summary["average"].get(metric)
        return value

    def site(self, name: str, metric: str) -> float | None:
        """The value of a site in the run's own table."""
        value: float | None = self.summary["sites"].get(name, {}).get(metric)
        return value


@dataclass(frozen=True)
class GridCases:
    """The finished runs of a grid: ``runs[method][seed]``."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[str, Mapping[int, RunCases]]

    @property
    def sites(self) -> tuple[str, ...]:
        """All sites that some run has tested."""
        runs = (run for by_seed in self.runs.values() for run in by_seed.values())
        return tuple(dict.fromkeys(site for run in runs for site in run.summary["sites"]))


@dataclass(frozen=True)
class Pairs:
    """Differences between two methods, by site an array ``(tests, cases)``; NaN where a test has no pair of a case."""

    differences: Mapping[str, Array]
    test_seeds: tuple[int, ...]
    """The seed of each test: a run of repeated splits has several."""
    alone: int
    """Values of a case that only one of the methods has."""
    only_means: tuple[str, ...]
    """Sites that have a value in the tables and no case."""
    linked: bool
    """Whether a case can be followed over seeds: not where the cases of different splits have only numbers."""

    @property
    def case_means(self) -> Array:
        """One difference a case of any site, the mean over its tests, ``(cases,)``."""
        means = [np.nanmean(site, axis=0) for site in self.differences.values()]
        return np.concatenate(means) if means else np.zeros(0)


def read_cases(grid: Path) -> GridCases:
    """Read the run folders of a grid; runs that are not finished are left out."""
    plan = read_json(grid / "grid.json")
    runs: dict[str, dict[int, RunCases]] = {method: {} for method in plan["methods"]}
    for entry in plan["runs"]:
        folder = grid / entry["folder"]
        if (folder / "summary.json").exists():
            runs[entry["method"]][entry["seed"]] = _read_run(folder)
    return GridCases(tuple(plan["methods"]), tuple(dict.fromkeys(e["seed"] for e in plan["runs"])), runs)


def pairs_of(own: Mapping[int, RunCases], reference: Mapping[int, RunCases], metric: str) -> Pairs:
    """The pairs of two methods' runs, by seed: a case is paired with itself, in the same part of the same seed."""
    seeds = [seed for seed in own if seed in reference]
    tests: dict[tuple[int, str], dict[tuple[str, str], float]] = {}
    alone = 0
    for seed in seeds:
        ours, theirs = own[seed].cases.get(metric, {}), reference[seed].cases.get(metric, {})
        for part, site, case in dict.fromkeys((*ours, *theirs)):
            value, other = (values.get((part, site, case), math.nan) for values in (ours, theirs))
            alone += math.isfinite(value) != math.isfinite(other)
            if math.isfinite(value) and math.isfinite(other):
                tests.setdefault((seed, part), {})[site, case] = value - other
    everyone = [own[seed] for seed in seeds] + [reference[seed] for seed in seeds]
    splits = [own[seed].summary.get("split_sha256") for seed in seeds]
    linked = all(split == splits[0] for split in splits) or not any(run.numbered for run in everyone)
    only_means = _without_cases([(own[seed], reference[seed]) for seed in seeds], metric)
    return Pairs(_by_site(tests.values()), tuple(seed for seed, _ in tests), alone, only_means, linked)


def _by_site(tests: Iterable[Mapping[tuple[str, str], float]]) -> dict[str, Array]:
    tests = list(tests)
    cases: dict[str, dict[str, None]] = {}
    for site, case in sorted({key for test in tests for key in test}):
        cases.setdefault(site, {})[case] = None
    return {
        site: np.array([[test.get((site, case), math.nan) for case in names] for test in tests])
        for site, names in cases.items()
    }


def _without_cases(runs: Iterable[tuple[RunCases, RunCases]], metric: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pair in runs:
        for site in pair[0].summary["sites"]:
            known = all(run.site(site, metric) is not None for run in pair)
            if known and not all(any(key[1] == site for key in run.cases.get(metric, {})) for run in pair):
                found[site] = None
    return tuple(found)


def _read_run(folder: Path) -> RunCases:
    path = folder / "cases.csv"
    rows = rows_from_csv(path) if path.exists() else []
    by_place: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row.get("part", ""), row["site"]), []).append(row)
    cases: dict[str, dict[Key, float]] = {}
    for (part, site), own in by_place.items():
        for metric, values in named_case_values(own).items():
            cases.setdefault(metric, {}).update({(part, site, case): value for case, value in values.items()})
    return RunCases(read_json(folder / "summary.json"), cases, any(map(are_numbered, by_place.values())))
