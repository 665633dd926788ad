"""Runs side by side: who gets which share of the machine, and what happens when one ends badly."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from grid_support import Heard, about, grid_run, recipe_with, stand_in  # noqa: F401 (a fixture)
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_progress import GridProgress
from polyclinic.runs.grid_schedule import Room
from polyclinic.runs.side_by_side import SideBySide

pytestmark = pytest.mark.usefixtures("stand_in")


def automatic(workers: int | None = None) -> Recipe:
    """The engine that heeds ``engine.workers``."""
    return with_changes(recipe_with(), {"engine.name": "auto", "engine.workers": workers})


def do(runs: list[GridRun], room: Room, jobs: int) -> tuple[GridProgress, Heard, list[GridRun]]:
    progress, heard = GridProgress(runs, jobs), Heard()
    side_by_side = SideBySide(room, jobs, progress, heard)
    with closing(side_by_side.run()) as finished:
        done = list(finished)
    assert not side_by_side.running
    assert all(process.process.poll() is not None for process in side_by_side.idle)
    return progress, heard, done


def workers_of(run: GridRun) -> int:
    return int(about(run)["recipe"].split("\nworkers = ")[1].split()[0])


def test_processes_are_kept_and_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    runs = [grid_run(tmp_path, method, seed) for seed in (0, 1, 2) for method in ("fedavg", "fedbn")]
    progress, heard, done = do(runs, Room(2), 2)
    assert {run.folder for run in done} == {run.folder for run in runs}
    assert len(progress.of("finished")) == 6
    assert heard.most == 2
    assert [line for line in heard.lines if line.startswith("started")] == [f"started {run.title}" for run in runs]
    assert len({about(run)["pid"] for run in runs}) == 2
    assert [workers_of(run) for run in runs] == [1] * 6


def test_few_runs_share_all_slots(tmp_path: Path) -> None:
    runs = [grid_run(tmp_path, method, recipe=automatic()) for method in ("fedavg", "fedbn", "fedprox")]
    do(runs, Room(8), 3)
    assert sorted(workers_of(run) for run in runs) == [2, 3, 3]


def test_the_recipes_own_number_of_workers_stays(tmp_path: Path) -> None:
    runs = [grid_run(tmp_path, method, recipe=automatic(4)) for method in ("fedavg", "fedbn", "fedprox")]
    _, heard, _ = do(runs, Room(8), 3)
    assert [workers_of(run) for run in runs] == [4] * 3
    assert heard.most == 2


def test_more_runs_than_slots_are_the_users_wish(tmp_path: Path) -> None:
    runs = [grid_run(tmp_path, method, recipe=automatic()) for method in ("fedavg", "fedbn", "fedprox")]
    _, heard, _ = do(runs, Room(1), 3)
    assert [workers_of(run) for run in runs] == [1] * 3
    assert heard.most == 3


def test_threads_and_gpus_are_in_the_environment_of_a_process(tmp_path: Path) -> None:
    recipe = with_changes(recipe_with(), {"engine.threads": 3})
    runs = [grid_run(tmp_path, method, recipe=recipe) for method in ("fedavg", "fedbn")]
    do(runs, Room(2, ("GPU-b", "GPU-a")), 2)
    assert {about(run)["gpus"] for run in runs} == {"GPU-b", "GPU-a"}
    assert {about(run)["omp"] for run in runs} == {"3"}


def test_a_run_alone_has_all_gpus(tmp_path: Path) -> None:
    run = grid_run(tmp_path, recipe=automatic())
    do([run], Room(2, ("4", "1")), 2)
    assert (about(run)["gpus"], workers_of(run)) == ("4,1", 2)


def test_one_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    bad = ("refuses", "breaks", "dies", "leaves")
    runs = [grid_run(tmp_path, method, seed) for seed in (0, 1) for method in (*bad, "fedavg")]
    progress, _, done = do(runs, Room(2), 2)
    assert sorted(run.title for run in done) == ["fedavg seed 0", "fedavg seed 1"]
    problems = {failed.run.method: failed.problem for failed in progress.of("failed")}
    assert problems.keys() == set(bad)
    assert problems["refuses"] == "images: no such folder; give another."
    assert problems["breaks"] == "ValueError: no"
    assert "SIGKILL" in problems["dies"]


def test_an_interruption_leaves_no_process(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line == "started lasts seed 1":
            raise KeyboardInterrupt

    runs = [grid_run(tmp_path, "lasts", seed) for seed in (0, 1, 2)]
    side_by_side = SideBySide(Room(2), 2, GridProgress(runs, 2), Heard(interrupt))
    with pytest.raises(KeyboardInterrupt), closing(side_by_side.run()) as finished:
        list(finished)
    assert len(side_by_side.running) == 2
    assert all(process.process.poll() is not None for process in side_by_side.running)


def test_the_last_run_waits_for_all_slots_when_the_others_are_nearly_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots, three runs: the third gets both."""
    monkeypatch.setattr(GridProgress, "sites", lambda _: 4)
    monkeypatch.setattr(GridProgress, "run_seconds_left", lambda *_: 1.0)
    monkeypatch.setattr(GridProgress, "expected_seconds", lambda *_: 100.0)
    runs = [grid_run(tmp_path, "fedavg", seed, automatic()) for seed in (0, 1, 2)]
    do(runs, Room(2), 2)
    assert [workers_of(run) for run in runs] == [1, 1, 2]


@pytest.mark.parametrize(("sites", "left"), [(0, 1.0), (1, 1.0), (4, 90.0)])
def test_it_does_not_wait_where_that_wins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: int, left: float
) -> None:
    """The number of sites is not known, or a run has one site, or the others still take long."""
    monkeypatch.setattr(GridProgress, "sites", lambda _: sites)
    monkeypatch.setattr(GridProgress, "run_seconds_left", lambda *_: left)
    monkeypatch.setattr(GridProgress, "expected_seconds", lambda *_: 100.0)
    runs = [grid_run(tmp_path, "fedavg", seed, automatic()) for seed in (0, 1, 2)]
    side_by_side = SideBySide(Room(2), 2, GridProgress(runs, 2), Heard())
    assert side_by_side._better_to_wait([1]) is False
    side_by_side.progress.start(runs[0])
    side_by_side.progress.start(runs[1])
    assert side_by_side._better_to_wait([1]) is False
