from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.results import read_results
from polyclinic.report.page.score_tables import ablation_table, metric_table, run_table, score_table, study_table
from polyclinic.report.statistics import grid_statistics
from polyclinic.report.study import study_of
from report_support import write_grid, write_run, write_study


def test_scores_have_means_deviations_and_marks_for_the_best_two(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    (grid,) = read_results(folder).grids
    statistics = grid_statistics(folder, "dice")
    table = score_table(grid, "dice", statistics)
    assert list(table.header)[:4] == ["method", "north", "south", "average"]
    rows = {row[0].text: row for row in table.rows}
    assert [rows[method][3].rank for method in grid.methods] == [3, 2, 1]
    assert (rows["fedbn"][3].text, rows["fedbn"][3].note) == ("63.50", "± 0.71")
    one = statistics.methods["fedbn"]
    assert one.difference is not None
    assert rows["fedbn"][4].number == pytest.approx(100 * one.difference)
    assert rows["fedavg"][4].text == "reference"
    assert rows["fedbn"][-1].note == "south", "the worst site"


def test_the_best_of_a_distance_is_the_smallest(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path)).grids
    table = metric_table(grid)
    assert list(table.header) == ["method", "Dice, %", "HD95, pixels"]
    assert [row[2].rank for row in table.rows] == [3, 2, 1]


def test_numbers_that_read_the_same_have_the_same_mark(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, seeds=(0,))
    for place, value in enumerate((0.500001, 0.500002, 0.4)):
        file = folder / f"m{place}-seed0" / "summary.json"
        summary = read_json(file)
        write_json(file, summary | {"average": {**summary["average"], "dice": value}})
    (grid,) = read_results(folder).grids
    assert [row[3].rank for row in score_table(grid, "dice", None).rows] == [1, 1, 2]


def test_one_run_has_a_row_for_each_site_and_the_average_last(tmp_path: Path) -> None:
    (grid,) = read_results(write_run(tmp_path)).grids
    table = run_table(grid)
    assert [row[0].text for row in table.rows] == ["north", "south", "average"]
    assert [row[1].text for row in table.rows] == ["63.00", "53.00", "58.00"]


def test_a_study_has_a_column_for_each_value(tmp_path: Path) -> None:
    results = read_results(write_study(tmp_path))
    table = study_table(results, study_of(tmp_path, "dice"))
    assert list(table.header) == ["method", "data.labelled = 5", "data.labelled = 10"]
    assert [row[1].text for row in table.rows] == ["58.50", "63.50"]


def test_an_ablation_says_what_each_row_keeps(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("fedavg", "pathfl"), seeds=(0,))).grids
    rows = [{"method": "fedavg", "components": []}, {"method": "pathfl", "components": ["cse"]}, {"method": "gone"}]
    table = ablation_table(grid, {"components": ["afa", "cse"], "rows": rows}, "dice")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["fedavg", "", "", "58.00", ""],
        ["pathfl", "", "✓", "63.00", "+5.00"],
    ]
