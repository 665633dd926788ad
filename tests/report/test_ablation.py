"""The table of an ablation, with numbers by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.ablation import AblationTable, ablation_of
from polyclinic.report.tables import Comparison

KEPT = {"fedavg": (), "m-b": ("a",), "m-a": ("b",), "m": ("a", "b")}


@pytest.fixture
def table() -> AblationTable:
    """One site, two seeds; means 0.5, 0.6, 0.45 and 0.7."""
    dice: dict[str, list[float | None]] = {
        "fedavg": [0.4, 0.6], "m-b": [0.6, None], "m-a": [0.4, 0.5], "m": [0.7, 0.7],
    }  # fmt: skip
    values = {row: {"north": scores, "average": scores} for row, scores in dice.items()}
    return AblationTable("m", ("a", "b"), KEPT, Comparison("dice", tuple(KEPT), ("north",), values))


def test_check_marks_sites_average_and_two_differences(table: AblationTable) -> None:
    assert table.header == ["method", "a", "b", "north", "average", "vs base", "vs full"]
    assert table.rows() == [
        ["fedavg", "", "", "50.00 ± 14.14", "50.00 ± 14.14", "", "-20.00"],
        ["m-b", "✓", "", "60.00", "60.00", "+10.00", "-10.00"],
        ["m-a", "", "✓", "45.00 ± 7.07", "45.00 ± 7.07", "-5.00", "-25.00"],
        ["m", "✓", "✓", "70.00 ± 0.00", "70.00 ± 0.00", "+20.00", ""],
    ]


def test_what_a_component_adds_is_the_mean_over_pairs_that_differ_in_it_alone(table: AblationTable) -> None:
    value, pairs = table.contribution("a")
    assert (value, pairs) == (pytest.approx((0.1 + 0.25) / 2), 2)
    value, pairs = table.contribution("b")
    assert (value, pairs) == (pytest.approx((-0.05 + 0.1) / 2), 2)
    assert table.contributions() == [
        "a: +17.50 on average over 2 pairs of rows that differ in it alone.",
        "b: +2.50 on average over 2 pairs of rows that differ in it alone.",
    ]
    assert "\n\n- a: +17.50 on average" in table.to_markdown()
    assert "| m-b | ✓ |  | <ins>60.00</ins> |" in table.to_markdown()
    assert "| m | ✓ | ✓ | **70.00 ± 0.00** | **70.00 ± 0.00** | +20.00 |  |" in table.to_markdown()


def test_csv_and_json_have_full_precision(table: AblationTable) -> None:
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert len(rows) == 4 * 2
    found = next(row for row in rows if row["method"] == "m-b" and row["column"] == "average")
    assert [found[key] for key in ("a", "b", "metric", "mean", "standard_deviation", "seeds")] == [
        "1", "0", "dice", "0.6", "", "1",
    ]  # fmt: skip
    assert float(found["difference_to_base"]) == pytest.approx(0.1)
    facts = json.loads(json.dumps(table.to_json()))
    assert (facts["method"], facts["base"], facts["components"]) == ("m", "fedavg", ["a", "b"])
    assert [row["components"] for row in facts["rows"]] == [[], ["a"], ["b"], ["a", "b"]]
    assert facts["rows"][3]["sites"]["north"]["difference_to_base"] == pytest.approx(0.2)
    assert facts["rows"][1]["average"]["seeds"] == [0.6, None]
    assert facts["contributions"]["a"] == {"mean": pytest.approx(0.175), "pairs": 2}


def test_steps_and_stuck_runs_stand_below_the_table(
    table: AblationTable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "steps" not in table.to_markdown()
    stuck = "Stuck at background: m-a seed 0 (5 validated rounds); see docs/explanation/training.md."
    comparison = replace(table.comparison, steps={**dict.fromkeys(KEPT, 24), "m": 12}, words=(stuck,))
    table = replace(table, comparison=comparison)
    steps = "Optimiser steps of all sites together: fedavg 24, m-b 24, m-a 24, m 12."
    assert table.to_markdown().endswith(f"in it alone.\n- {steps}\n- {stuck}\n")
    monkeypatch.setenv("COLUMNS", "120")
    table.show()
    assert capsys.readouterr().out.splitlines()[-2:] == [steps, stuck]
    rows = csv.DictReader(io.StringIO(table.to_csv()))
    found = [(row["method"], row["column"], row["steps"]) for row in rows if row["method"] == "m"]
    assert found == [("m", "north", ""), ("m", "average", "12")]
    facts = json.loads(json.dumps(table.to_json()))
    assert [row["steps"] for row in facts["rows"]] == [24, 24, 24, 12]
    assert facts["words"] == [steps, stuck]


def test_a_narrow_terminal_drops_the_names_which_the_marks_repeat(
    table: AblationTable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    table.show()
    wide = capsys.readouterr().out
    assert wide.splitlines()[0].split() == ["method", "a", "b", "north", "average", "vs", "base", "vs", "full"]
    monkeypatch.setenv("COLUMNS", "60")
    table.show()
    narrow = capsys.readouterr().out
    assert narrow.splitlines()[0].split()[:2] == ["a", "b"]
    assert max(map(len, narrow.splitlines())) <= 60
    assert "a: +17.50 on average" in narrow
    assert "base (fedavg), with none of these components" in " ".join(narrow.split())


def test_long_names_of_components_become_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"base": (), "whole": ("perturbation_invariance",)}
    values: dict[str, dict[str, list[float | None]]] = {
        row: {site: [0.5, 0.6] for site in ("vendor-a", "[b]", "average")} for row in kept
    }
    comparison = Comparison("dice", tuple(kept), ("vendor-a", "[b]"), values)
    monkeypatch.setenv("COLUMNS", "70")
    AblationTable("whole", ("perturbation_invariance",), kept, comparison).show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["(1)", "vendor-a", "[b]", "average", "vs", "base", "vs", "full"], "no markup"
    assert lines[3] == "(1) perturbation_invariance"


def test_names_of_four_sites_are_broken_at_their_joints_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"base": (), "whole": ("smoothing", "proximal")}
    sites = tuple(f"hospital-{letter}" for letter in "abcd")
    values = {row: {site: [0.5, 0.6] for site in (*sites, "average")} for row in kept}
    monkeypatch.setenv("COLUMNS", "80")
    AblationTable("whole", ("smoothing", "proximal"), kept, Comparison("dice", tuple(kept), sites, values)).show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["hospital"] * 4
    assert lines[1].split()[:6] == ["(1)", "(2)", "-a", "-b", "-c", "-d"]
    assert lines[2].split()[:2] == ["55.00", "±"]


def _write(folder: Path, methods: list[str], done: list[str], **more: Any) -> None:
    runs = [{"method": method, "seed": 0, "folder": method} for method in methods]
    folder.mkdir(exist_ok=True)
    (folder / "grid.json").write_text(json.dumps({"methods": methods, "seeds": [0], "runs": runs}))
    rows = [{"method": row, "components": kept} for row, kept in KEPT.items()]
    (folder / "ablation.json").write_text(json.dumps({"method": "m", "components": ["a", "b"], "rows": rows}))
    for name in done:
        (folder / name).mkdir(exist_ok=True)
        summary = {"sites": {"x": {"dice": 0.5}}, "average": {"dice": 0.5}, **more}
        (folder / name / "summary.json").write_text(json.dumps(summary))


def test_it_is_read_from_a_grid_that_may_hold_more(tmp_path: Path) -> None:
    _write(tmp_path, ["fedbn", *KEPT], list(KEPT))
    table = ablation_of(tmp_path, "dice")
    assert table.comparison.methods == tuple(KEPT)
    assert table.comparison.missing == (), "fedbn is no row"
    assert table.mean("m-a", "x") == 0.5
    assert table.words == ()
    (tmp_path / "m" / "summary.json").unlink()
    assert ablation_of(tmp_path, "dice", partial=True).comparison.missing == ("m seed 0",)
    with pytest.raises(PolyclinicError, match="m seed 0 is not finished; start the same ablate command again"):
        ablation_of(tmp_path, "dice")
    _write(tmp_path, ["fedbn"], [])
    with pytest.raises(PolyclinicError, match="lists other methods; start the same ablate command again"):
        ablation_of(tmp_path, "dice", partial=True)


def test_what_it_says_of_the_training_is_of_its_own_rows(tmp_path: Path) -> None:
    stuck = {"all": {"longest": 5, "at_end": 5}}
    _write(tmp_path, ["fedbn", *KEPT], ["fedbn"], steps=99, stuck=stuck)
    _write(tmp_path, ["fedbn", *KEPT], list(KEPT), steps=24)
    _write(tmp_path, ["fedbn", *KEPT], ["m"], steps=24, stuck=stuck)
    assert ablation_of(tmp_path, "dice").words == (
        "Optimiser steps of all sites together: 24 for every method.",
        "Stuck at background: m seed 0 (5 validated rounds, to the end); see docs/explanation/training.md.",
    )
