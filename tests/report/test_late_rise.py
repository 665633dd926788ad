"""Rows whose validation Dice still rose late are named, with their mean over seeds."""

from __future__ import annotations

from pathlib import Path

from polyclinic.core.files import read_json, write_json
from polyclinic.report.late_rise import late_rise_words
from polyclinic.report.overview import write_tables
from polyclinic.report.page.results import read_results
from polyclinic.report.page.training_notes import late_rise_note
from report_support import write_grid


def rose(dice: float) -> dict[str, object]:
    return {"late_rise": {"dice": dice}}


def test_methods_that_rose_by_a_point_are_named_with_the_mean_over_their_seeds() -> None:
    runs = [("fedavg", rose(0.03)), ("fedavg", rose(0.05)), ("flat", rose(0.009)), ("fell", rose(-0.2))]
    words = late_rise_words(runs)
    assert "(fedavg +4.0)" in words
    assert "training.rounds" in words
    assert late_rise_words(runs[2:]) == ""


def test_an_order_is_spoken_of_where_there_are_several_methods() -> None:
    several = late_rise_words([("fedavg", rose(0.03)), ("old", {})])
    assert "with more of them (training.rounds) the order may be another;" in several
    alone = late_rise_words([("fedavg", rose(0.03)), ("fedavg", rose(0.05))])
    assert "with more of them (training.rounds) the result may be better;" in alone


def test_one_seed_that_rose_does_not_speak_for_the_mean() -> None:
    assert late_rise_words([("fedavg", rose(0.03)), ("fedavg", rose(-0.02))]) == ""


def test_runs_that_do_not_tell_are_passed_over() -> None:
    assert late_rise_words([("old", {}), ("damaged", {"late_rise": 3}), ("too", {"late_rise": {"dice": "much"}})]) == ""


def test_of_many_methods_some_are_named_and_the_rest_counted() -> None:
    words = late_rise_words([(f"m{number}", rose(0.02)) for number in range(9)])
    assert words.count("+2.0") == 6
    assert "and" not in words.split("(")[1].split(")")[0]
    assert "3 more" in words


def test_it_stands_below_the_table_and_in_the_report(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", ("fedavg", "fedbn"), (0, 1))
    assert not any("Not trained out" in line for line in write_tables(grid, "dice", ["dice"]).words)
    for number in (0, 1):
        path = grid / f"m1-seed{number}" / "summary.json"
        write_json(path, read_json(path) | rose(0.02))
    (line,) = (line for line in write_tables(grid, "dice", ["dice"]).words if "Not trained out" in line)
    assert "(fedbn +2.0)" in line
    assert "Not trained out" in (grid / "table.md").read_text(encoding="utf-8")
    (found,) = read_results(grid).grids
    assert late_rise_note(found) == line
