"""How far a grid is, and how long the rest takes."""

from __future__ import annotations

from pathlib import Path

from grid_support import Clock, clock, grid_run, recipe_with, rounds_done, write_live  # noqa: F401 (a fixture)
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_progress import GridProgress


def runs_of(out: Path, *methods: str, **sections: object) -> list[GridRun]:
    recipe = recipe_with(**{"training": {"rounds": 10}, **sections})
    return [grid_run(out, method, seed, recipe) for seed in (0, 1) for method in methods]


def test_the_time_left_from_rounds_then_from_finished_runs(tmp_path: Path, clock: Clock) -> None:  # noqa: F811
    first, other, second, last = runs_of(tmp_path, "fedavg", "fedbn")
    progress = GridProgress([first, other, second, last], side_by_side=2)
    assert progress.seconds_left() is None
    progress.start(first)
    progress.start(other)
    assert progress.seconds_left() is None, "nothing is done yet"
    clock.now += 20
    rounds_done(first, 5, clock.now)
    progress.refresh()
    assert progress.rounds() == (5, 40)
    # 4 s a round: 20 s are left of the first run; the others, of which nothing is known, take as long: 40 s each.
    assert progress.run_seconds_left(progress.runs[first.folder]) == 20
    assert progress.run_seconds_left(progress.runs[other.folder]) == 20
    assert progress.seconds_left() == 20 + 40
    clock.now += 10
    assert progress.run_seconds_left(progress.runs[first.folder]) == 10, "time goes on between two rounds"
    clock.now += 10
    progress.finish(first)
    clock.now += 40
    progress.finish(other)
    assert progress.rounds() == (20, 40)
    expected = [progress.expected_seconds(progress.runs[run.folder]) for run in (second, last)]
    assert expected == [40, 80], "each method as its finished run"
    assert progress.seconds_left() == 80


def test_a_resumed_run_does_not_count_rounds_of_its_first_start(tmp_path: Path, clock: Clock) -> None:  # noqa: F811
    (run, _) = runs_of(tmp_path, "fedavg")
    rounds_done(run, 6, clock.now - 500)
    progress = GridProgress([run])
    progress.start(run)
    progress.refresh()
    assert (progress.rounds(), progress.seconds_left()) == ((6, 10), None)
    clock.now += 3
    rounds_done(run, 7, clock.now)
    progress.refresh()
    assert progress.seconds_left() == 9
    clock.now += 9
    assert progress.finish(run).seconds == 12


def test_runs_of_an_earlier_start_tell_how_long_a_run_takes(tmp_path: Path) -> None:
    first, second = runs_of(tmp_path, "fedavg")
    first.folder.mkdir()
    (first.folder / "summary.json").write_text('{"seconds": 30}')
    progress = GridProgress([first, second])
    progress.was_finished(first)
    assert (progress.rounds(), progress.seconds_left()) == ((10, 20), 30)


def test_a_failed_run_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:  # noqa: F811
    first, second = runs_of(tmp_path, "fedavg")
    progress = GridProgress([first, second])
    progress.start(first)
    clock.now += 1
    rounds_done(first, 1, clock.now)
    assert progress.fail(first, "no room").problem == "no room"
    assert progress.rounds() == (0, 10)
    assert progress.seconds_left() is None


def test_parts_of_runs_that_have_begun_count_for_those_that_have_not(tmp_path: Path) -> None:
    first, second = runs_of(tmp_path, "fedavg", protocol={"kind": "leave-one-site-out"})
    progress = GridProgress([first, second])
    assert progress.rounds() == (0, 20)
    write_live(first, round=2, sites={"a": {}, "b": {}})
    for site in "abc":
        (first.folder / f"split-without-{site}.csv").touch()
    progress.start(first)
    progress.refresh()
    assert progress.rounds() == (2, 60)
    assert progress.sites() == 2
