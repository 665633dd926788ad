"""All metrics of a grid, in the files and in the terminal."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from grid_values import Values, write_grid
from polyclinic.report.overview import print_overview, write_tables
from polyclinic.report.tables import Comparison
from support import call


def test_seven_metrics_with_deviations_fit_80_columns_without_a_torn_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    metrics = ("dice", "iou", "precision", "sensitivity", "hd95", "asd", "assd")
    methods = ("fedavg", "fedavg+proximal(mu=0.1)")
    values = {method: {"average": [0.5, 0.6]} for method in methods}
    print_overview([Comparison(metric, methods, (), values) for metric in metrics])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["method", *metrics]
    assert lines[3][0] == "fedavg"
    assert lines[4][0] == "+proximal"


def test_compare_shows_and_writes_all_metrics(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = call(
        "compare", tiny_recipe_file, "--methods", "fedavg,fedbn", "--seeds", "1", "--out", tmp_path, "-j", "1",
        "--set", "training.rounds=1", "--set", "evaluation.metrics=[dice,iou,hd95,asd]",
    )  # fmt: skip
    assert done.code == 0, done.err
    averages = {
        method: json.loads((tmp_path / f"{method}-seed0" / "summary.json").read_text())["average"]
        for method in ("fedavg", "fedbn")
    }
    marks = re.compile(r"\*\*|</?ins>")
    lines = [marks.sub("", line) for line in (tmp_path / "table.md").read_text().splitlines()]
    start = lines.index("| method | dice | iou | hd95 | asd |")
    for number, (method, values) in enumerate(averages.items()):
        scales = {"dice": 100, "iou": 100, "hd95": 1, "asd": 1}
        shown = [f"{values[name] * scale:.2f}" for name, scale in scales.items()]
        assert lines[start + 2 + number] == f"| {method} | {' | '.join(shown)} |"
        assert any(line.split() == [method, *shown] for line in done.out.splitlines())
    assert sum(line.startswith("| method | north | south | average |") for line in lines) == 4
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = {(r["metric"], r["method"], r["column"]): float(r["mean"]) for r in csv.DictReader(file)}
    assert len(rows) == 4 * 2 * 3
    assert rows["asd", "fedbn", "average"] == averages["fedbn"]["asd"]
    tex = (tmp_path / "table.tex").read_text()
    assert re.findall(r"\\label\{tab:(\w+)\}", tex) == ["dice", "iou", "hd95", "asd"]
    stored = json.loads((tmp_path / "statistics.json").read_text())
    assert list(stored["metrics"]) == ["dice", "iou", "hd95", "asd"]
    assert stored["metrics"]["asd"]["methods"]["fedbn"]["sentence"] in "\n".join(lines)


def test_files_of_three_methods_have_a_diagram_and_those_of_an_unfinished_grid_say_so(tmp_path: Path) -> None:
    def sites(more: float) -> Values:
        return {s: {f"c{n}": 0.5 + 0.1 * n + more for n in range(3)} for s in "abc"}

    methods = {name: [sites(0.01 * number)] * 2 for number, name in enumerate(("x", "y", "z"))}
    table = write_tables(write_grid(tmp_path / "grid", methods), "dice", ["dice"], reference="y")
    assert (table.against, table.header[-2:]) == ("y", ["vs y", "p"])
    assert {path.name for path in (tmp_path / "grid").iterdir() if path.is_file()} == {
        "grid.json", "table.md", "table.csv", "table.tex", "statistics.csv", "statistics.json",
        "critical-difference.pdf", "critical-difference.svg",
    }  # fmt: skip
    text = (tmp_path / "grid" / "table.md").read_text()
    for line in (*table.words, "| z | 1.00 | a | 62.00 | 0.00 | 0.00 |"):
        assert line in text
    partial = write_grid(tmp_path / "partial", {"x": [sites(0.0)], "y": [None]})
    half = write_tables(partial, "dice", ["dice"], partial=True)
    assert half.words == ("y against x: not tested, no seed is finished for both",)
    assert half.header[-1] == "vs x", "no column of p-values where there is none"


def test_tables_say_how_long_their_rows_were_trained_and_which_runs_found_nothing(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, {name: [{"a": {"c": 0.5}, "b": {"c": 0.6}}] for name in ("x", "y")})
    facts = ({"steps": 24}, {"steps": 12, "stuck": {"all": {"longest": 7, "at_end": 7}}})
    for number, more in enumerate(facts):
        path = grid / f"run{number}-seed0" / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    steps, stuck = write_tables(grid, "dice", ["dice"]).words[-2:]
    assert steps == "Optimiser steps of all sites together: x 24, y 12."
    assert stuck.startswith("Stuck at background: y seed 0 (7 validated rounds, to the end)")
    assert f"- {steps}\n" in (grid / "table.md").read_text()
    assert f" {steps}}}" in (grid / "table.tex").read_text()
    with (grid / "table.csv").open(newline="") as file:
        found = [(row["method"], row["steps"]) for row in csv.DictReader(file) if row["column"] == "average"]
    assert found == [("x", "24"), ("y", "12")]


def test_one_metric_has_no_overview(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call(
        "compare", tiny_recipe_file, "--methods", "fedavg", "--seeds", "1", "--out", tmp_path,
        "--set", "training.rounds=1", "--set", "evaluation.metrics=[dice]",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (tmp_path / "table.md").read_text().count("| method |") == 1
    assert "Average over sites" not in done.out
