"""All metrics of a grid, in the files and in the terminal."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from support import call


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
    lines = (tmp_path / "table.md").read_text().splitlines()
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


def test_one_metric_has_no_overview(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call(
        "compare", tiny_recipe_file, "--methods", "fedavg", "--seeds", "1", "--out", tmp_path,
        "--set", "training.rounds=1", "--set", "evaluation.metrics=[dice]",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (tmp_path / "table.md").read_text().count("| method |") == 1
    assert "Average over sites" not in done.out
