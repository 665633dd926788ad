"""How a grid fills the machine: runs side by side first, then the sites of a run. Arithmetic alone.

A *slot* is room for one training process: as many cores as it has threads, or one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyclinic.recipe.engine import EngineSettings

_WITH_WORKERS = ("auto", "workers")  # engines that heed engine.workers
_RUN_BYTES = 10**9  # a process with torch, a network, its optimiser and some images takes about that
_WORKER_GAIN = 0.65  # what each process beyond the first adds to a run's speed, at least
_MARGIN = 0.9  # waiting must shorten the rest by a tenth: estimates are rough


@dataclass(frozen=True)
class Room:
    """What the machine has room for. ``gpus`` are names for ``CUDA_VISIBLE_DEVICES``, one for each slot."""

    slots: int
    gpus: tuple[str, ...] = ()


def room_for(cores: int, threads: int, gpus: Sequence[str], device: str) -> Room:
    """The slots for processes of this many threads on ``engine.device``."""
    on_cores = max(1, cores // threads)
    if device == "cpu" or (device == "auto" and not gpus):
        return Room(on_cores)
    if device in ("auto", "cuda") and gpus:
        return Room(min(on_cores, len(gpus)), tuple(gpus[:on_cores]))
    return Room(1)  # one device that the recipe names


def chosen_slots(engine: EngineSettings, room: Room) -> int | None:
    """The slots of a run, if the number of its workers is not for the grid to decide."""
    if engine.name not in _WITH_WORKERS:
        return 1
    return None if engine.workers is None else min(engine.workers, room.slots)


def most_side_by_side(room: Room, runs: int, memory: int, chosen: int | None) -> int:
    """How many runs to have at a time: one for each slot, or ``chosen`` slots, as far as memory (in bytes) goes."""
    return max(1, min(runs, room.slots // (chosen or 1), memory // _RUN_BYTES))


def starting_workers(free: int, waiting: int, vacancies: int, chosen: int | None = None) -> list[int]:
    """For each run to start now the number of its worker processes; together no more than ``free`` slots.

    ``vacancies`` is how many more runs may go side by side, ``chosen`` the slots of a run, if they are not for the
    grid to decide.
    """
    runs = min(waiting, vacancies, free // (chosen or 1))
    if runs <= 0:
        return []
    share, rest = divmod(free, runs)
    return [chosen or share + (number < rest) for number in range(runs)]


def speed(workers: int) -> float:
    """How much faster a run with so many worker processes is expected to be than with one."""
    return 1 + _WORKER_GAIN * (workers - 1)


def better_to_wait(
    slots: int, waiting: int, starting: Sequence[int], left: Sequence[float], run_seconds: float
) -> bool:
    """Whether the last runs end sooner if they start when the running ones have ended, and share all slots then.

    ``starting`` are the workers that they would have now, ``left`` the seconds that each of the running ones still
    takes, ``run_seconds`` those of a run with one worker.
    """
    if not left or not starting or waiting >= slots:
        return False
    now = run_seconds / speed(min(starting))
    later = max(left) + run_seconds / speed(slots // waiting)
    return later < _MARGIN * now


def seconds_left(running: Sequence[float], waiting: Sequence[float], side_by_side: int) -> float:
    """When everything is done, if each of the waiting runs starts as soon as a place is free."""
    places = sorted(running) + [0.0] * (side_by_side - len(running))
    for seconds in waiting:
        places.sort()
        places[0] += seconds
    return max(places, default=0.0)
