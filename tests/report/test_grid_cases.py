"""Pairs of cases: a case is paired with itself, in the same part of the same seed, and nothing else."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import numpy as np
import pytest

from grid_values import one_site, write_grid, write_run
from polyclinic.core.errors import PolyclinicError
from polyclinic.evaluation.aggregate import Row, rows_to_csv
from polyclinic.report.grid_cases import GridCases, Pairs, pairs_of, read_cases


def pairs(cases: GridCases, metric: str = "dice") -> Pairs:
    reference, other = cases.methods
    return pairs_of(cases.runs[other], cases.runs[reference], metric)


def test_seeds_with_other_test_sets_meet_in_the_case(tmp_path: Path) -> None:
    """Case c1 is tested with both seeds, c0 and c2 with one: three cases, each with the mean of its own tests."""
    first = [{"a": {"c0": 0.5, "c1": 0.5}}, {"a": {"c1": 0.5, "c2": 0.5}}]
    second = [{"a": {"c0": 0.6, "c1": 0.7}}, {"a": {"c1": 0.9, "c2": 0.4}}]
    found = pairs(read_cases(write_grid(tmp_path / "grid", {"x": first, "y": second}, splits=["p", "q"])))
    assert found.test_seeds == (0, 1)
    assert found.differences["a"] == pytest.approx(np.array([[0.1, 0.2, nan], [nan, 0.4, -0.1]]), nan_ok=True)
    assert found.case_means == pytest.approx([0.1, 0.3, -0.1])
    assert found.linked


def test_the_value_of_a_case_is_that_of_the_tables(tmp_path: Path) -> None:
    """Mean over images of the mean over classes; each class has an entry too."""

    def rows(offset: float) -> list[Row]:
        values = [("x", "disc", 0.2), ("x", "core", 0.4), ("y", "disc", 0.8), ("y", "core", nan)]
        return [
            {"site": "a", "case": "1", "image": image, "class": name, "metric": "dice", "value": value + offset}
            for image, name, value in values
        ]

    grid = write_grid(tmp_path / "grid", {"x": [one_site([0.5])], "y": [one_site([0.5])]})
    rows_to_csv(grid / "run0-seed0" / "cases.csv", rows(0.0))
    rows_to_csv(grid / "run1-seed0" / "cases.csv", rows(0.1))
    cases = read_cases(grid)
    assert cases.runs["x"][0].cases["dice"]["", "a", "1"] == pytest.approx((0.3 + 0.8) / 2)
    assert pairs(cases, "dice/core").case_means == pytest.approx([0.1])


def test_parts_that_test_a_case_again_are_tests_of_their_own(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [one_site([0.5])], "y": [one_site([0.5])]})
    for number, values in enumerate(([0.5, 0.6], [0.7, 0.6])):
        rows: list[Row] = [
            {"site": "a", "case": "c", "image": "i", "class": "d", "metric": "dice", "value": value,
             "part": f"repeat-{part}"}
            for part, value in enumerate(values)
        ]  # fmt: skip
        rows_to_csv(grid / f"run{number}-seed0" / "cases.csv", rows)
    found = pairs(read_cases(grid))
    assert found.test_seeds == (0, 0)
    assert found.differences["a"] == pytest.approx(np.array([[0.2], [0.0]]))
    assert found.case_means == pytest.approx([0.1]), "one case, tested twice"


def test_values_that_one_method_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    grid = write_grid(
        tmp_path / "grid", {"x": [one_site([0.5, None, None, 0.5])], "y": [one_site([0.6, 0.6, None, None])]}
    )
    found = pairs(read_cases(grid))
    assert found.case_means == pytest.approx([0.1])
    assert found.alone == 2, "what neither has is no reason to doubt"


def test_runs_that_are_not_finished_and_files_that_are_not_there(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [one_site([0.5]), one_site([0.5])], "y": [one_site([0.6]), None]})
    cases = read_cases(grid)
    assert list(cases.runs["y"]) == [0]
    assert pairs(cases).test_seeds == (0,)
    (grid / "run0-seed0" / "cases.csv").unlink()
    assert pairs(read_cases(grid)).differences == {}
    (grid / "run1-seed0" / "cases.csv").write_text("nonsense")
    with pytest.raises(PolyclinicError, match=r"run1-seed0/cases\.csv: the first row must be"):
        read_cases(grid)


def test_a_site_that_lets_only_means_out_is_named(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [one_site([0.5])], "y": [one_site([0.6])]})
    for number in (0, 1):
        facts = {"stats": {"b": {"dice": {"mean": 0.7, "std": 0.1, "count": 9}}}}
        write_run(grid / f"other{number}", one_site([0.5, 0.6]), facts=facts)
    runs = [{"method": m, "seed": 0, "folder": f"other{n}"} for n, m in enumerate("xy")]
    (grid / "grid.json").write_text(json.dumps({"methods": ["x", "y"], "seeds": [0], "runs": runs}))
    found = pairs(read_cases(grid))
    assert (list(found.differences), found.only_means) == (["a"], ("b",))


def test_numbered_cases_of_other_splits_cannot_be_followed(tmp_path: Path) -> None:
    def grid(name: str, splits: list[str]) -> Pairs:
        folder = write_grid(tmp_path / name, {m: [one_site([0.5])] * 2 for m in "xy"}, splits=splits)
        rows: list[Row] = [
            {"site": "a", "case": "case-1", "image": "image-1", "class": "d", "metric": "dice", "value": 0.5}
        ]
        for path in folder.glob("run*"):
            rows_to_csv(path / "cases.csv", rows)
        return pairs(read_cases(folder))

    assert not grid("other", ["p", "q"]).linked
    assert grid("same", ["p", "p"]).linked
