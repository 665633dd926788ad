from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.results import Results, read_results
from polyclinic.report.page.study_charts import study_chart
from polyclinic.report.study import StudyTable, study_of
from report_support import write_grid, write_study


def test_lines_go_over_the_values_in_their_order(tmp_path: Path) -> None:
    write_study(tmp_path)
    plan = read_json(tmp_path / "study.json")
    write_json(tmp_path / "study.json", plan | {"values": ["10", "5"]})
    chart = study_chart(read_results(tmp_path), study_of(tmp_path, "dice"))
    assert [(trace["name"], trace["x"]) for trace in chart.data] == [("fedavg", [5.0, 10.0]), ("fedbn", [5.0, 10.0])]
    assert chart.data[0]["y"] == pytest.approx([58.5, 58.5])
    assert chart.data[0]["error_y"]["array"] == pytest.approx([0.70711] * 2)


@pytest.mark.parametrize(
    ("values", "marks"),
    [(["1", "2"], [1.0, 2.0]), (["0.01", "0.001"], [0.001, 0.01]), (["1", "2", "100"], None), (["5", "5.0"], None)],
)
def test_marks_are_the_values_where_their_numbers_have_room(
    tmp_path: Path, values: list[str], marks: list[float] | None
) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("fedavg", "fedbn"), seeds=(0,))).grids
    table = StudyTable("k", "dice", grid.methods, tuple(values), dict.fromkeys(values, grid.comparison("dice")))
    assert (
        study_chart(Results("study", tmp_path, (grid,), {"key": "k"}), table).layout["xaxis"].get("tickvals") == marks
    )


def test_two_keys_make_heat_maps(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("fedavg", "fedbn"), seeds=(0,))).grids
    axes = {"a": ["1", "2"], "b": ["x", "y", "z"]}
    values = tuple(f"{one}, {other}" for one in axes["a"] for other in axes["b"])
    tables = dict.fromkeys(values, grid.comparison("dice"))
    table = StudyTable("a, b", "dice", ("fedavg", "fedbn"), values, tables)
    chart = study_chart(Results("study", tmp_path, (grid,), {"key": "a, b", "axes": axes}), table)
    assert [(trace["type"], trace["xaxis"]) for trace in chart.data] == [("heatmap", "x"), ("heatmap", "x2")]
    assert (chart.data[0]["y"], chart.data[0]["x"]) == (["1", "2"], ["x", "y", "z"])
    assert chart.data[1]["z"] == [[63.0] * 3] * 2
