"""The table and the picture of a study, with numbers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyclinic.report.study import StudyTable, study_of
from polyclinic.report.tables import Comparison


def comparison(method: str, *dice: float | None) -> Comparison:
    """One method at one site ``a``, a value a seed."""
    return Comparison("dice", (method,), ("a",), {method: {"a": list(dice), "average": list(dice)}})


@pytest.fixture
def table() -> StudyTable:
    tables = {"1": comparison("fl_lower", 0.5, 0.7), "2": comparison("fl_lower", 0.75, None)}
    fixed = dict.fromkeys(("1", "2"), comparison("fl_upper", 0.9, 0.9))
    return StudyTable("data.labelled", "dice", ("fl_lower", "fl_upper"), ("1", "2"), tables, fixed)


def test_a_row_a_method_and_methods_without_the_key_stand_for_every_value(table: StudyTable) -> None:
    assert table.rows() == [
        ["method", "data.labelled=1", "2"],
        ["fl_lower", "60.00 ± 14.14", "75.00"],
        ["fl_upper", "90.00 ± 0.00", "90.00 ± 0.00"],
    ]
    assert table.mean("fl_lower", "1") == pytest.approx(0.6)
    assert table.deviation("fl_lower", "2") is None
    assert table.caption.endswith("fl_upper: does not depend on data.labelled, and ran once.")
    assert table.to_markdown().endswith(f"\n\n{table.caption}\n")


def test_csv_counts_the_seeds_that_gave_a_number(table: StudyTable) -> None:
    header, *lines = table.to_csv().splitlines()
    assert header == "data.labelled,method,column,metric,mean,standard_deviation,seeds,steps"
    assert "2,fl_lower,average,dice,0.75,,1," in lines
    assert "2,fl_upper,a,dice,0.9,0.0,2," in lines
    assert len(lines) == 2 * 2 * 2


def test_the_table_is_printed_with_its_caption(table: StudyTable, capsys: pytest.CaptureFixture[str]) -> None:
    table.show()
    shown = capsys.readouterr().out
    assert "60.00 ± 14.14" in shown
    assert "ran once." in " ".join(shown.split())


def test_steps_and_stuck_runs_stand_below_the_table(
    table: StudyTable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {value: replace(one, steps={"fl_lower": 12 * int(value)}) for value, one in table.tables.items()}
    fixed = {value: replace(one, steps={"fl_upper": 24}) for value, one in table.fixed.items()}
    stuck = "Stuck at background: fl_lower seed 0 in data.labelled=1 (5 validated rounds); see docs/explanation/x.md."
    table = replace(table, tables=tables, fixed=fixed, stuck=stuck)
    steps = (
        "Optimiser steps of all sites together: fl_lower 12, fl_upper 24 with data.labelled=1; "
        "24 for every method with data.labelled=2."
    )
    assert table.to_markdown().endswith(f"ran once.\n\n- {steps}\n- {stuck}\n")
    monkeypatch.setenv("COLUMNS", "160")
    table.show()
    assert capsys.readouterr().out.splitlines()[-2:] == [steps, stuck]
    lines = table.to_csv().splitlines()
    assert "2,fl_lower,average,dice,0.75,,1,24" in lines
    assert "2,fl_lower,a,dice,0.75,,1," in lines
    facts = json.loads(json.dumps(table.to_json()))
    assert [row["steps"] for row in facts["rows"]] == [12, 24, 24, 24]
    assert facts["words"] == [steps, stuck]


def test_a_study_is_read_from_its_grids(tmp_path: Path) -> None:
    stuck = {"all": {"longest": 0, "at_end": 0, "sites": {"a": {"longest": 5, "at_end": 5}}}}
    for name, method, dice in (("labelled=1", "fedavg", 0.5), ("labelled=2", "fedavg", 0.6), ("fixed", "central", 0.9)):
        run = tmp_path / name / "run"
        run.mkdir(parents=True)
        summary = {"sites": {"a": {"dice": dice}}, "average": {"dice": dice}, "steps": 24}
        summary |= {"stuck": stuck} if name == "labelled=1" else {}
        (run / "summary.json").write_text(json.dumps(summary))
        runs = [{"method": method, "seed": 0, "folder": "run"}]
        (tmp_path / name / "grid.json").write_text(json.dumps({"methods": [method], "seeds": [0], "runs": runs}))
    plan: dict[str, Any] = {
        "key": "data.labelled", "methods": ["fedavg"], "values": ["1", "2"],
        "grids": {"1": "labelled=1", "2": "labelled=2"}, "fixed": None,
    }  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(plan))
    plain = study_of(tmp_path, "dice")
    assert [plain.mean("fedavg", value) for value in plain.values] == [0.5, 0.6]
    assert "ran once" not in plain.caption
    (tmp_path / "study.json").write_text(json.dumps({**plan, "methods": ["fedavg", "central"], "fixed": "fixed"}))
    whole = study_of(tmp_path, "dice")
    assert whole.mean("central", "2") == 0.9
    assert whole.words == (
        "Optimiser steps of all sites together: 24 for every method.",
        "Stuck at background at single sites: a of fedavg seed 0 in labelled=1 (5 validated rounds, to the end); "
        "see docs/explanation/training.md.",
    )


@pytest.fixture
def pairs() -> StudyTable:
    """Two methods over two learning rates and two numbers of labels, of which one method needs none."""
    means = {"0.1, 5": 0.5, "0.1, 10": 0.6, "0.2, 5": 0.7, "0.2, 10": 0.8}
    tables = {value: comparison("fl_lower", mean) for value, mean in means.items()}
    fixed = {value: comparison("fl_upper", 0.91 if value.startswith("0.1") else 0.92) for value in means}
    axes = {"training.lr": ("0.1", "0.2"), "data.labelled": ("5", "10")}
    return StudyTable("training.lr, data.labelled", "dice", ("fl_lower", "fl_upper"), tuple(means), tables, fixed, axes)


def test_two_keys_give_a_matrix_a_method(pairs: StudyTable, capsys: pytest.CaptureFixture[str]) -> None:
    assert pairs.matrix("fl_lower") == [
        ["training.lr", "data.labelled=5", "10"],
        ["0.1", "50.00", "60.00"],
        ["0.2", "70.00", "80.00"],
    ]
    assert pairs.matrix("fl_upper")[1:] == [["0.1", "91.00", "91.00"], ["0.2", "92.00", "92.00"]]
    assert pairs.caption.endswith("fl_upper: does not depend on data.labelled, and ran once for each training.lr.")
    assert pairs.to_markdown().startswith("### fl_lower\n\n| training.lr | data.labelled=5 | 10 |\n")
    pairs.show()
    shown = capsys.readouterr().out.splitlines()
    assert (shown[0], shown[4], shown[5]) == ("fl_lower", "", "fl_upper")
    assert shown[3].split() == ["0.2", "70.00", "80.00"]


def test_csv_and_json_have_both_keys_and_no_deviation_of_one_seed(pairs: StudyTable) -> None:
    header, *lines = pairs.to_csv().splitlines()
    assert header == "training.lr,data.labelled,method,column,metric,mean,standard_deviation,seeds,steps"
    assert "0.2,5,fl_lower,average,dice,0.7,,1," in lines
    assert len(lines) == 4 * 2 * 2
    facts = json.loads(json.dumps(pairs.to_json()))
    assert facts["keys"] == ["training.lr", "data.labelled"]
    assert facts["rows"][4] == {
        "values": {"training.lr": "0.2", "data.labelled": "5"},
        "method": "fl_lower",
        "sites": {"a": {"mean": 0.7, "standard_deviation": None, "seeds": [0.7]}},
        "average": {"mean": 0.7, "standard_deviation": None, "seeds": [0.7]},
        "steps": None,
    }


def test_one_key_as_json(table: StudyTable) -> None:
    facts = table.to_json()
    assert facts["keys"] == ["data.labelled"]
    assert [row["values"]["data.labelled"] for row in facts["rows"]] == ["1", "1", "2", "2"]
