"""Tables: numbers by hand, gaps shown as gaps."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import readable_bytes
from polyclinic.report.tables import Comparison, _laid_out, comparison_of, print_comparison


def make_grid(folder: Path, values: dict[str, list[dict[str, Any]]]) -> Path:
    """``values[method]`` holds the sites of each seed, by name; the average is the mean of those that are known."""
    runs = []
    for method, seeds in values.items():
        for seed, sites in enumerate(seeds):
            run = folder / f"{method}-seed{seed}"
            run.mkdir(parents=True)
            known = [dice for dice in sites.values() if dice is not None]
            average = {"dice": sum(known) / len(known) if known else None}
            summary = {"sites": {site: {"dice": dice} for site, dice in sites.items()}, "average": average}
            (run / "summary.json").write_text(json.dumps(summary))
            runs.append({"method": method, "seed": seed, "folder": run.name})
    (folder / "grid.json").write_text(json.dumps({"methods": list(values), "seeds": [0, 1], "runs": runs}))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Comparison:
    grid = {
        "first": [{"a": 0.5, "b": 0.7}, {"a": 0.6, "b": 0.8}],
        "second": [{"a": 0.9, "b": 0.5}, {"a": 0.7, "b": None}],
    }
    return comparison_of(make_grid(tmp_path, grid), "dice")


def test_means_deviations_and_differences(table: Comparison) -> None:
    assert table.header == ["method", "a", "b", "average", "vs first"]
    assert table.rows() == [
        ["first", "55.00 ± 7.07", "75.00 ± 7.07", "65.00 ± 7.07", ""],
        ["second", "80.00 ± 14.14", "50.00", "70.00 ± 0.00", "+5.00"],
    ]


def test_csv_has_full_precision_and_empty_cells_for_what_is_unknown(table: Comparison) -> None:
    rows = {(r["method"], r["column"]): r for r in csv.DictReader(io.StringIO(table.to_csv()))}
    assert float(rows["second", "a"]["mean"]) == pytest.approx(0.8)
    assert float(rows["second", "a"]["difference"]) == pytest.approx(0.25)
    assert float(rows["second", "b"]["difference"]) == pytest.approx(-0.25)
    assert (rows["second", "b"]["standard_deviation"], rows["second", "b"]["seeds"]) == ("", "1")
    assert rows["first", "a"]["difference"] == ""


def test_steps_of_the_runs_stand_in_the_line_of_the_average(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, {"first": [{"a": 0.5}, {"a": 0.6}], "older": [{"a": 0.7}, {"a": 0.7}]})
    for seed, steps in enumerate((24, 25)):
        path = grid / f"first-seed{seed}" / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "steps": steps}))
    table = comparison_of(grid, "dice")
    assert table.steps == table.to_json()["steps"] == {"first": 24.5}
    reader = csv.DictReader(io.StringIO(table.to_csv()))
    assert list(reader.fieldnames or ())[-1] == "steps", "columns of earlier versions keep their places"
    assert {(row["method"], row["column"]): row["steps"] for row in reader} == {
        ("first", "a"): "", ("first", "average"): "24.5", ("older", "a"): "", ("older", "average"): "",
    }  # fmt: skip


def test_markdown_is_a_table_with_a_caption(table: Comparison) -> None:
    lines = table.to_markdown().splitlines()
    assert lines[:2] == ["| method | a | b | average | vs first |", "| --- | ---: | ---: | ---: | ---: |"]
    assert all(line.count("|") == 6 for line in lines[:4])
    assert lines[-1] == "dice in %, mean ± standard deviation over 2 seeds."


def test_differences_are_to_the_reference_and_p_values_have_a_column(table: Comparison) -> None:
    other = replace(table, reference="second", p_values={"first": 0.2391})
    assert other.header[-2:] == ["vs second", "p"]
    assert [row[-2:] for row in other.rows()] == [["-5.00", "0.24"], ["", ""]]
    rows = {(r["method"], r["column"]): r for r in csv.DictReader(io.StringIO(other.to_csv()))}
    assert (rows["first", "average"]["p"], rows["first", "average"]["reference"]) == ("0.2391", "second")
    assert rows["first", "a"]["p"] == "", "only averages are tested"


def test_best_is_bold_and_second_underlined() -> None:
    values = {m: {c: [v] for c in ("a", "average")} for m, v in (("x", 0.5), ("y", 0.7), ("z", 0.6))}
    table = Comparison("dice", ("x", "y", "z"), ("a",), values)
    assert table.to_markdown().splitlines()[2:5] == [
        "| x | 50.00 | 50.00 |  |",
        "| y | **70.00** | **70.00** | +20.00 |",
        "| z | <ins>60.00</ins> | <ins>60.00</ins> | +10.00 |",
    ]
    far = replace(table, metric="hd95")
    assert [marks[1] for marks in far.marks()] == ["best", "", "second"]
    console = Console(force_terminal=True, width=80, color_system="standard", file=io.StringIO())
    console.print(_laid_out(table, 80, " ± "))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1m70.00\x1b[0m" in shown
    assert "\x1b[4m60.00\x1b[0m" in shown


def test_names_are_shown_and_never_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("[red]x[/red]", "<img src=x onerror=y>", "a|b\n# c")
    values = {name: {"average": [0.5], "\x1b[2Jsite": [0.5]} for name in names}
    table = Comparison("dice", names, ("\x1b[2Jsite",), values, words=("[red]x[/red] against *y*",))
    table = replace(table, missing=("[red]z[/red] seed 1",))
    print_comparison(table)
    shown = capsys.readouterr().out
    assert "[red]x[/red] against *y*" in shown
    assert "Not finished: [red]z[/red] seed 1." in shown
    assert "\x1b" not in shown
    lines = table.to_markdown().splitlines()
    assert lines[3].startswith("| &lt;img src=x onerror=y> |")
    assert lines[4].startswith("| a\\|b # c |")
    assert lines[-1] == "- \\[red]x[/red] against \\*y\\*"


def test_json_has_every_seed(table: Comparison) -> None:
    found = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert (found["metric"], found["reference"]) == ("dice", "first")
    assert found["methods"]["second"]["b"]["seeds"] == [0.5, None]
    assert found["methods"]["second"]["average"]["difference"] == pytest.approx(0.05)
    assert found["methods"]["first"]["a"]["difference"] is None
    assert found["p_values"] == {}


def test_a_site_that_only_some_methods_tested_is_a_gap(tmp_path: Path) -> None:
    table = comparison_of(make_grid(tmp_path, {"x": [{"a": 0.5}], "y": [{"b": None}]}), "dice")
    assert table.rows() == [["x", "50.00", "-", "50.00", ""], ["y", "-", "-", "-", ""]]
    assert table.caption == "dice in %, of 1 seed."


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_names_are_broken_at_their_joints_and_nothing_is_cut_off(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    methods = ("fedavg", "fedavg+proximal(mu=0.5)", "fedbcs(tau=0.005,levels=[0,1])-fsr")
    sites = ("hospital-north", "hospital-south", "karolinska", "west")
    print_comparison(
        Comparison("dice", methods, sites, {m: {s: [0.5, 0.6] for s in (*sites, "average")} for m in methods})
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    for word in (
        "hospital",
        "-north",
        "karolinska",
        "average",
        "proximal",
        "(tau=0.005,",
        "levels=[0,",
        "-fsr",
        "7.07",
    ):
        assert word in shown
    assert "…" not in shown


def test_four_sites_with_deviations_and_p_fit_80_columns_without_a_torn_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    methods, sites = ("fedavg", "fedsmooth"), tuple(f"hospital-{letter}" for letter in "abcd")
    values = {m: {s: [0.5, 0.6] for s in (*sites, "average")} for m in methods}
    print_comparison(Comparison("dice", methods, sites, values, p_values={"fedsmooth": 0.0001}))
    first, second, row, below, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert first == [*["hospital"] * 4, "vs"]
    assert second == ["method", "-a", "-b", "-c", "-d", "average", "fedavg", "p"]
    assert (row, below) == (["fedavg", *["55.00", "±"] * 5], ["7.07"] * 5)


def test_distances_are_not_percent() -> None:
    table = Comparison("hd95", ("x",), ("a",), {"x": {"a": [3.5], "average": [3.5]}})
    assert table.rows() == [["x", "3.50", "3.50", ""]]
    assert table.caption == "hd95 mean distance, of 1 seed."


def test_an_unfinished_run_is_named(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, {"x": [{"a": 0.5}]})
    (grid / "x-seed0" / "summary.json").unlink()
    with pytest.raises(
        PolyclinicError, match=r"x-seed0/summary\.json: this run is not finished; start the same compare"
    ):
        comparison_of(grid, "dice")


def test_many_sites_fit_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sites = tuple(f"hospital-{letter}" for letter in "abcdef")
    columns = {name: [0.81234, 0.79] for name in (*sites, "average")}
    print_comparison(Comparison("dice", ("fedavg", "fedbn"), sites, {"fedavg": columns, "fedbn": columns}))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("80.12") == 14, "no number is cut in two"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_864_000, "1.9 MB"), (5e9, "5.0 GB"), (7e12, "7000.0 GB")],
)
def test_sizes_for_people(number: float, text: str) -> None:
    assert readable_bytes(number) == text
