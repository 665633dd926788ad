from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyclinic.report.page.curve_charts import curve, loss_charts, validation, validation_chart
from polyclinic.report.page.results import RunRecord, read_results
from report_support import SITES, round_event, write_grid, write_run


def test_a_curve_is_the_mean_over_the_parts_of_a_protocol(tmp_path: Path) -> None:
    events = [round_event(0, 0, 0), round_event(0, 0, 1), {**round_event(0, 5, 0), "part": "fold-2"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = curve(RunRecord("fedavg", 0, tmp_path), validation)
    assert found == pytest.approx({1: (0.4 + 0.45) / 2, 2: 0.5})


def test_lines_are_means_over_seeds_and_bands_reach_over_all_of_them(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path)).grids
    chart = validation_chart(grid)
    assert chart is not None
    line = next(trace for trace in chart.data if trace.get("name") == "fedbn")
    assert line["y"] == pytest.approx([42.5, 52.5, 62.5])
    shade = next(trace for trace in chart.data if trace["meta"] == {"method": 1} and "fillcolor" in trace)
    assert shade["y"] == pytest.approx([43, 53, 63, 62, 52, 42])
    assert "of 2 seeds" in chart.note


def test_one_run_has_a_line_for_each_site(tmp_path: Path) -> None:
    (grid,) = read_results(write_run(tmp_path)).grids
    chart = validation_chart(grid)
    assert chart is not None
    assert [trace["name"] for trace in chart.data] == [*SITES, "mean over sites"]


def test_every_term_of_a_loss_has_a_chart_and_rounds_without_numbers_are_left_out(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg", "fedprox"), seeds=(0,))
    losses = {"north": {"segmentation": 0.5, "proximal": 0.25}, "south": {"segmentation": float("nan")}}
    event = round_event(1, 0, 0, losses=losses, validation={"dice": None, "sites": {}})
    (folder / "m1-seed0" / "events.jsonl").write_text(json.dumps(event) + "\n")
    (grid,) = read_results(folder).grids
    charts = {chart.label: chart for chart in loss_charts(grid)}
    assert list(charts) == ["Training loss segmentation by round", "Training loss proximal by round"]
    proximal = charts["Training loss proximal by round"]
    assert [trace["y"] for trace in proximal.data] == [[0.25]]
    assert "fedprox alone" in proximal.note
    second = next(t for t in charts["Training loss segmentation by round"].data if t["meta"] == {"method": 1})
    assert second["y"] == [0.5], "NaN does not count"
    assert [trace["name"] for trace in (validation_chart(grid) or proximal).data] == ["fedavg"]
