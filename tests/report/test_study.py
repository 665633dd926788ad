"""The table and the picture of a study, with numbers by hand."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from polyclinic.report.study import StudyTable, study_of
from polyclinic.report.tables import Comparison


def comparison(method: str, *dice: float | None) -> Comparison:
    """One method at one site ``a``, a value a seed."""
    return Comparison("dice", (method,), ("a",), {method: {"a": list(dice), "average": list(dice)}})


@pytest.fixture
def table() -> StudyTable:
    tables = {"1": comparison("fl_lower", 0.5, 0.7), "2": comparison("fl_lower", 0.75, None)}
    fixed = comparison("fl_upper", 0.9, 0.9)
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
    assert header == "data.labelled,method,column,metric,mean,standard_deviation,seeds"
    assert "2,fl_lower,average,dice,0.75,,1" in lines
    assert "2,fl_upper,a,dice,0.9,0.0,2" in lines
    assert len(lines) == 2 * 2 * 2


def test_the_table_is_printed_with_its_caption(table: StudyTable, capsys: pytest.CaptureFixture[str]) -> None:
    table.show()
    shown = capsys.readouterr().out
    assert "60.00 ± 14.14" in shown
    assert "ran once." in " ".join(shown.split())


def test_a_study_is_read_from_its_grids(tmp_path: Path) -> None:
    for name, method, dice in (("labelled=1", "fedavg", 0.5), ("labelled=2", "fedavg", 0.6), ("fixed", "central", 0.9)):
        run = tmp_path / name / "run"
        run.mkdir(parents=True)
        summary = {"sites": {"a": {"dice": dice}}, "average": {"dice": dice}}
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
    assert study_of(tmp_path, "dice").mean("central", "2") == 0.9


def test_words_are_drawn_side_by_side(tmp_path: Path) -> None:
    columns: dict[str, list[float | None]] = {"a": [0.5, 0.7], "average": [0.5, 0.7]}
    one = Comparison("hd95", ("fedavg",), ("a",), {"fedavg": columns})
    StudyTable("training.schedule", "hd95", ("fedavg",), ("constant", "cosine"), {"constant": one, "cosine": one}).draw(
        tmp_path / "study.png"
    )
    assert (tmp_path / "study.png").stat().st_size > 1000


def test_the_line_goes_from_low_to_high_and_a_gap_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: dict[str, list[float | None]] = {"16": [0.9], "4": [0.5], "8": [None]}
    tables = {
        value: Comparison("dice", ("fedavg",), ("a",), {"fedavg": {"a": mean, "average": mean}})
        for value, mean in numbers.items()
    }
    drawn: list[Any] = []
    monkeypatch.setattr(Axes, "errorbar", lambda _, x, y, *__, **___: drawn.append((x, y)))
    monkeypatch.setattr(Axes, "legend", lambda *_, **__: None)
    StudyTable("data.labelled", "dice", ("fedavg",), tuple(numbers), tables).draw(tmp_path / "study.png")
    ((places, means),) = drawn
    assert places == [4, 8, 16]
    assert means == pytest.approx([50, nan, 90], nan_ok=True)
