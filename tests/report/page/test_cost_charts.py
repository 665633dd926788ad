from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.cost_charts import cost_charts, cost_table, costs_of
from polyclinic.report.page.results import read_results
from report_support import write_grid


def test_costs_are_means_over_seeds_with_the_reach_of_the_scores(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path)).grids
    costs = costs_of(grid, "dice")
    assert [(cost.method, cost.seconds, cost.bytes_up) for cost in costs] == [
        ("fedavg", 10.0, 6e6),
        ("fedbn", 11.0, 6e6),
        ("fedprox", 12.0, 6e6),
    ]
    seconds, megabytes = cost_charts(costs, "dice")
    middle = grid.comparison("dice").mean("fedbn", "average")
    assert middle is not None
    point = seconds.data[1]
    assert (point["x"], point["y"]) == ([11.0], [pytest.approx(100 * middle)])
    assert point["error_y"]["array"] == [pytest.approx(0.5)], "seeds are 1 apart"
    assert megabytes.data[1]["x"] == [18.0]
    assert [cell.text for cell in cost_table(costs, "dice").rows[0]][2:] == ["10.0", "6.0 MB", "12.0 MB"]


def test_a_method_that_pools_images_has_no_bytes(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, seeds=(0,))
    summary = folder / "m1-seed0" / "summary.json"
    write_json(summary, read_json(summary) | {"images_leave": True})
    (grid,) = read_results(folder).grids
    costs = costs_of(grid, "dice")
    _, megabytes = cost_charts(costs, "dice")
    assert [trace["name"] for trace in megabytes.data] == ["fedavg", "fedprox"]
    assert "Without fedbn" in megabytes.note
    assert cost_table(costs, "dice").rows[1][3].text == "all images"


def test_before_a_result_there_is_no_chart(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("fedavg",), seeds=(0,), missing=[("fedavg", 0)])).grids
    assert cost_charts(costs_of(grid, "dice"), "dice") == []
