from __future__ import annotations

from math import nan
from pathlib import Path

import pytest

from polyclinic.evaluation.aggregate import Row
from polyclinic.report.page.case_charts import case_chart, cases_over_seeds, values_of_cases
from polyclinic.report.page.results import read_results
from report_support import SITES, value_of, write_grid


def a_row(case: str, image: str, name: str, value: float) -> Row:
    return {"site": "a", "case": case, "image": image, "class": name, "metric": "dice", "value": value}


def test_a_case_is_the_mean_over_its_images_of_the_mean_over_classes() -> None:
    rows = [
        a_row("1", "x", "disc", 0.2),
        a_row("1", "x", "core", 0.6),
        a_row("1", "y", "disc", 0.8),
        a_row("2", "z", "disc", nan),
    ]
    values = values_of_cases(rows, "dice")["a"]
    assert values["1"] == pytest.approx(((0.2 + 0.6) / 2 + 0.8) / 2)
    assert values_of_cases(rows, "dice/core") == {"a": {"1": pytest.approx(0.6)}}
    assert values_of_cases(rows, "iou") == {}


def test_a_point_is_a_case_and_not_a_case_in_a_seed(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path)).grids
    values = cases_over_seeds(grid, "fedbn", "dice")
    assert values["south"]["case2"] == pytest.approx((value_of(1, 0, 1, 2) + value_of(1, 1, 1, 2)) / 2)
    chart = case_chart(grid, "dice")
    assert chart is not None
    assert [trace["name"] for trace in chart.data] == list(grid.methods)
    assert len(chart.data[0]["x"]) == 2 * 4, "two sites with four cases each, in two seeds"
    assert set(chart.data[0]["y"]) == set(SITES)
    distance = case_chart(grid, "hd95")
    assert distance is not None
    assert distance.layout["xaxis"]["title"]["text"] == "HD95 of a case in pixels"


def test_of_very_many_cases_only_those_far_from_the_others_are_points(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("fedavg",), seeds=(0,), cases=1501)).grids
    chart = case_chart(grid, "dice")
    assert chart is not None
    assert chart.data[0]["boxpoints"] == "outliers"
    assert chart.note.startswith("A point is a case far from the others")


def test_without_cases_there_is_no_chart(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path)).grids
    for file in tmp_path.rglob("cases.csv"):
        file.unlink()
    (grid,) = read_results(tmp_path).grids
    assert case_chart(grid, "dice") is None
