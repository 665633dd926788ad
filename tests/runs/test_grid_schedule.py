"""How a grid fills the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.recipe.engine import EngineSettings
from polyclinic.runs.grid_schedule import (
    Room,
    better_to_wait,
    chosen_slots,
    most_side_by_side,
    room_for,
    seconds_left,
    speed,
    starting_workers,
)

MUCH = 10**12


@pytest.mark.parametrize(
    ("cores", "threads", "gpus", "device", "expected"),
    [
        (8, 1, (), "auto", Room(8)),
        (8, 3, (), "cpu", Room(2)),
        (2, 4, (), "auto", Room(1)),
        (8, 1, ("0", "1"), "auto", Room(2, ("0", "1"))),
        (8, 1, ("GPU-a", "GPU-b"), "cuda", Room(2, ("GPU-a", "GPU-b"))),
        (2, 1, ("0", "1", "2"), "cuda", Room(2, ("0", "1"))),
        (8, 1, ("0", "1"), "cpu", Room(8)),
        (8, 1, ("0", "1"), "cuda:1", Room(1)),
        (8, 1, (), "cuda", Room(1)),
        (8, 1, (), "mps", Room(1)),
    ],
)
def test_room(cores: int, threads: int, gpus: tuple[str, ...], device: str, expected: Room) -> None:
    assert room_for(cores, threads, gpus, device) == expected


@pytest.mark.parametrize(
    ("slots", "runs", "memory", "chosen", "expected"),
    [
        (2, 6, MUCH, 1, 2),
        (8, 6, MUCH, None, 6),
        (8, 6, 3_500_000_000, None, 3),
        (8, 6, 1000, None, 1),
        (8, 6, MUCH, 3, 2),
        (2, 6, MUCH, 2, 1),
    ],
)
def test_runs_side_by_side(slots: int, runs: int, memory: int, chosen: int | None, expected: int) -> None:
    assert most_side_by_side(Room(slots), runs, memory, chosen) == expected


@pytest.mark.parametrize(
    ("name", "workers", "expected"),
    [("inprocess", None, 1), ("inprocess", 4, 1), ("auto", None, None), ("workers", 3, 3), ("auto", 99, 8)],
)
def test_slots_that_the_recipe_chooses(name: str, workers: int | None, expected: int | None) -> None:
    assert chosen_slots(EngineSettings(name=name, workers=workers), Room(8)) == expected


@pytest.mark.parametrize(
    ("free", "waiting", "vacancies", "wanted", "expected"),
    [
        (2, 6, 2, None, [1, 1]),
        (1, 4, 1, None, [1]),
        (8, 3, 3, None, [3, 3, 2]),
        (8, 1, 1, None, [8]),
        (8, 6, 2, None, [4, 4]),
        (8, 6, 6, 3, [3, 3]),
        (8, 6, 6, 1, [1] * 6),
        (2, 6, 2, 3, []),
        (0, 6, 0, None, []),
        (3, 0, 3, None, []),
    ],
)
def test_workers_of_runs_that_start(
    free: int, waiting: int, vacancies: int, wanted: int | None, expected: list[int]
) -> None:
    assert starting_workers(free, waiting, vacancies, wanted) == expected


@given(
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(1, 40),
    st.none() | st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_never_more_threads_than_cores_and_every_run_gets_its_turn(
    cores: int, threads: int, runs: int, wanted: int | None, order: object
) -> None:
    """Runs end in any order; the machine is full while enough of them wait."""
    room = room_for(cores, threads, (), "cpu")
    chosen = chosen_slots(EngineSettings(name="auto", workers=wanted), room)
    jobs = most_side_by_side(room, runs, MUCH, chosen)
    waiting, running = runs, list[int]()
    while waiting or running:
        starting = starting_workers(room.slots - sum(running), waiting, jobs - len(running), chosen)
        waiting -= len(starting)
        running += starting
        assert running, "somebody is at work"
        assert all(workers >= 1 for workers in running)
        assert sum(running) * threads <= max(cores, threads)
        if chosen is None and waiting:
            assert sum(running) == room.slots
        running.pop(order.randrange(len(running)))  # type: ignore[attr-defined]


def test_the_last_runs_wait_for_the_whole_machine_if_that_is_soon() -> None:
    """Two slots, one run waiting, 100 s with one worker, 60.6 s with two."""
    assert better_to_wait(2, 1, [1], [5.0], 100.0)
    assert not better_to_wait(2, 1, [1], [35.0], 100.0), "little is won"
    assert not better_to_wait(2, 1, [1], [80.0], 100.0)
    assert not better_to_wait(2, 1, [2], [], 100.0), "nothing else is running"
    assert not better_to_wait(2, 2, [1], [1.0], 100.0), "it would have one worker then, too"
    assert not better_to_wait(2, 1, [], [1.0], 100.0), "there is no room to start anyway"
    assert better_to_wait(8, 2, [1, 1], [10.0, 20.0], 100.0)


@given(st.integers(2, 16), st.integers(1, 16), st.floats(0, 1e4), st.floats(1, 1e4))
def test_who_waits_ends_sooner(slots: int, waiting: int, left: float, seconds: float) -> None:
    if better_to_wait(slots, waiting, [1], [left], seconds):
        assert left + seconds / speed(slots // waiting) < seconds


def naive_end(running: list[float], waiting: list[float], places: int) -> float:
    """Second by second."""
    running, waiting, now = list(running), list(waiting), 0
    while running or waiting:
        while waiting and len(running) < places:
            running.append(waiting.pop(0))
        running = [seconds - 1 for seconds in running if seconds > 1]
        now += 1
    return now


@given(st.lists(st.integers(1, 9), max_size=3), st.lists(st.integers(1, 9), max_size=6), st.integers(3, 4))
def test_the_time_left_is_that_of_a_clock(running: list[int], waiting: list[int], places: int) -> None:
    assert seconds_left(running, waiting, places) == naive_end([*running], [*waiting], places)
