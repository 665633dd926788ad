"""``statistics.csv``, ``statistics.json`` and the table of fairness."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from grid_values import Values, write_grid
from polyclinic.report.statistics import grid_statistics
from polyclinic.report.statistics_files import fairness_markdown, write_statistics

SITE = 'hospital, "a" | <b>'


def values(more: float) -> Values:
    return {SITE: {f"c{n}": 0.5 + 0.01 * n + more for n in range(4)}, "b": {f"c{n}": 0.7 + 0.02 * n for n in range(3)}}


def test_every_number_of_the_csv_is_that_of_the_json(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [values(0.0)] * 2, "y": [values(0.05), values(0.03)]})
    write_statistics(grid, [grid_statistics(grid, "dice")])
    with (grid / "statistics.csv").open(newline="") as file:
        reference, row = csv.DictReader(file)
    stored = json.loads((grid / "statistics.json").read_text())
    one = stored["metrics"]["dice"]["methods"]["y"]
    assert stored["reference"] == row["reference"] == "x"
    assert float(row["difference"]) == one["difference"] == pytest.approx(0.02)
    assert float(row["cases_low"]) == one["over_cases"]["low"]
    assert float(row["cases_seeds_high"]) == one["over_cases_and_seeds"]["high"]
    for name in ("p_t", "p_wilcoxon", "p_t_holm", "p_wilcoxon_holm", "cohens_dz", "rank_biserial", "cases", "zeros"):
        assert float(row[name]) == one[name]
    assert (row["sentence"], row["verdict"], row["seeds"]) == (one["sentence"], one["verdict"], "2")
    assert (row["worst_site"], float(row["mean_rank"])) == (SITE, 1.25)
    assert (reference["method"], reference["difference"], reference["sentence"]) == ("x", "", "")
    assert float(reference["spread_over_sites"]) == pytest.approx(0.205)


def test_fairness_is_a_table_that_names_cannot_break(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [values(0.0)], "y": [values(0.05)]})
    lines = fairness_markdown(grid_statistics(grid, "dice")).strip().splitlines()
    assert lines[0].startswith("| method | mean rank | worst site |")
    assert lines[2] == '| x | 1.75 | hospital, "a" \\| &lt;b> | 51.50 | 14.50 | 20.50 |'
    assert lines[-1] == "Fairness: dice over sites, on means over seeds."


def test_one_site_has_no_fairness(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {m: [{"a": {"c": 0.5}}] for m in "xy"})
    assert fairness_markdown(grid_statistics(grid, "dice")) == ""
