from __future__ import annotations

from pathlib import Path

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.opening import answer, conclusion, facts, missing_words, question, verdicts
from polyclinic.report.page.results import read_results
from polyclinic.report.statistics import grid_statistics
from report_support import write_grid, write_run, write_study


def test_the_question_is_that_of_the_folder(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", ("fedavg", "pathfl"), seeds=(0,))
    folders = (write_run(tmp_path / "run"), grid, write_study(tmp_path / "study"))
    assert [question(read_results(folder)) for folder in folders] == [
        "How well does fedavg segment tiny?",
        "Which method segments tiny best?",
        "What does data.labelled change on tiny?",
    ]
    study = tmp_path / "study"
    write_json(study / "study.json", read_json(study / "study.json") | {"axes": {"a.b": ["5", "10"], "c": ["1"]}})
    assert question(read_results(study)) == "What do a.b and c change on tiny?"
    write_json(grid / "ablation.json", {"method": "pathfl", "components": [], "rows": [{"method": "fedavg"}]})
    assert question(read_results(grid)) == "What does each component of pathfl bring on tiny?"


def test_the_answer_names_the_best_by_the_direction_of_the_metric(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, ("worst", "best"), seeds=(0,))).grids
    assert answer(grid, "dice") == "best has the highest average Dice over the sites: 63.00\u00a0%."
    assert answer(grid, "hd95") == "best has the lowest average HD95 over the sites: 9.00\u00a0pixels."
    (alone,) = read_results(tmp_path / "m0-seed0").grids
    assert answer(alone, "dice") == "worst reaches an average Dice of 58.00\u00a0% over 2 sites."


def test_what_is_shown_comes_from_the_tests_and_not_from_the_means(tmp_path: Path) -> None:
    folder = write_grid(tmp_path)
    statistics = grid_statistics(folder, "dice")
    assert [line["sentence"] for line in verdicts(statistics)] == list(statistics.sentences)
    shown = [one.method for one in statistics.methods.values() if one.verdict == "better"]
    expected = f"Shown to be better than fedavg: {', '.join(shown)}." if shown else "No method is shown"
    assert conclusion(statistics).startswith(expected)
    assert (conclusion(None), verdicts(None)) == ("", [])


def test_facts_are_those_of_the_recipe_and_of_the_split(tmp_path: Path) -> None:
    found = dict(facts(read_results(write_grid(tmp_path)), "dice"))
    assert found["images"] == "12 (4 for training, 4 for validation, 4 for testing)"
    assert found["judged by"] == "Dice; every site trains, and is tested on test images of its own"
    assert (found["training"], found["seeds"]) == ("3 rounds, 1 local epoch each", "0, 1")


def test_runs_without_a_result_are_named(tmp_path: Path) -> None:
    results = read_results(write_grid(tmp_path, missing=[("fedbn", 1)]))
    assert missing_words(results.grids) == "Not finished, so not in any number here: fedbn seed 1."
    results = read_results(write_grid(tmp_path / "none", ("fedavg",), seeds=(0,), missing=[("fedavg", 0)]))
    assert answer(results.grids[0], "dice") == "There is no result yet."
