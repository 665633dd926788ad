"""A resumable grid of runs, methods x seeds, that fills the machine: runs side by side, each in a process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import closing

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.core.machine import available_cores, has_mps, visible_gpus
from polyclinic.core.memory import free_memory
from polyclinic.engines.registry import find_engine
from polyclinic.federation.observer import ForwardingObserver
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.runs.grid_failure import GridFailedError, failure_of
from polyclinic.runs.grid_finished import is_finished
from polyclinic.runs.grid_plan import GridPlan, GridRun
from polyclinic.runs.grid_progress import GridObserver, GridProgress
from polyclinic.runs.grid_schedule import Room, chosen_slots, most_side_by_side, room_for
from polyclinic.runs.known_here_only import known_here_only
from polyclinic.runs.out_folder import refuse_other_use
from polyclinic.runs.side_by_side import TICK, SideBySide
from polyclinic.runs.start_run import run as run_in_this_process


def run_grid(
    plan: GridPlan, *, metric: str = "dice", jobs: int | None = None, observer: GridObserver | None = None
) -> None:
    """Run what is missing of the grid, whose runs must measure ``metric``."""
    refuse_other_use(plan.out, "comparison")
    check_grid(plan, metric)
    plan.save()
    with closing(carry_out(plan.runs(), jobs, observer)) as finished:
        for _ in finished:
            pass


def check_grid(plan: GridPlan, metric: str) -> None:
    """Stop where a method or the metric is not known, before anything runs."""
    load_plugins(plan.recipe.plugins)
    for method in plan.methods:
        parse_method(method)
    if metric not in plan.recipe.evaluation.metrics:
        raise PolyclinicError(
            f"--metric {metric}: not measured; evaluation.metrics holds {', '.join(plan.recipe.evaluation.metrics)}."
        )


def carry_out(
    runs: Sequence[GridRun], jobs: int | None = None, observer: GridObserver | None = None
) -> Generator[GridRun, None, None]:
    """Do the runs that are not done, and give each when it is; done ones come first.

    ``jobs`` runs go side by side, each in a process; by default as many as the machine has room for. With one they go
    one after another in this process. A run that fails stops no other; what failed is raised at the end.
    """
    observer = observer or GridObserver()
    progress = GridProgress(runs)
    done = [run for run in runs if is_finished(run)]
    for run in done:
        progress.was_finished(run)
    to_do = [progress.run for progress in progress.of("waiting")]
    room, jobs = _decide(to_do, jobs, observer)
    progress.side_by_side = jobs
    yield from done
    if not to_do:
        return
    observer.on_plan(progress)
    if jobs == 1:
        yield from _one_after_another(to_do, progress, observer)
    else:
        with closing(SideBySide(room, jobs, progress, observer).run()) as finished:
            yield from finished
    if failed := progress.of("failed"):
        raise GridFailedError(failed, len(runs))


def _decide(runs: Sequence[GridRun], jobs: int | None, observer: GridObserver) -> tuple[Room, int]:
    """What the machine has room for, and how many of these runs go side by side."""
    if jobs is not None and jobs < 1:
        raise PolyclinicError(f"jobs = {jobs}: expected the number of runs side by side, at least 1.")
    if not runs:
        return Room(1), 1
    recipe = runs[0].recipe
    threads = max(run.recipe.engine.threads for run in runs)
    gpus, device = visible_gpus(), recipe.engine.device
    device = "mps" if device == "auto" and not gpus and has_mps() else device
    room = room_for(available_cores(), threads, gpus, device)
    if jobs == 1:
        return room, 1
    alone = known_here_only(recipe, dict.fromkeys(run.method for run in runs))
    advice = "put it into a file and name that in the recipe's plugins"
    if alone and jobs is not None:
        raise PolyclinicError(f"jobs = {jobs}: {alone} is known to this program only; {advice}, or give jobs = 1.")
    if alone and len(runs) > 1:
        observer.on_message(f"{alone} is known to this program only, so runs go one after another; {advice}.")
    if alone or (jobs is None and len(runs) == 1):
        return room, 1
    if jobs is not None:
        return room, min(jobs, len(runs))
    if find_engine(recipe.engine.name).launches is not None:
        return room, 1  # it has processes of its own for all sites
    return room, most_side_by_side(room, len(runs), free_memory(), chosen_slots(recipe.engine, room))


class _Ticks(ForwardingObserver):
    """A run in this process tells that it goes on; where it stands is in its folder, as for all others."""

    def __init__(self, progress: GridProgress, observer: GridObserver) -> None:
        self.progress, self.observer, self.last = progress, observer, 0.0

    def forward(self, event: str, *arguments: object) -> None:  # noqa: ARG002
        if time.monotonic() - self.last >= TICK:
            self.progress.refresh()
            self.observer.on_tick(self.progress)
            self.last = time.monotonic()


def _one_after_another(
    runs: Sequence[GridRun], progress: GridProgress, observer: GridObserver
) -> Generator[GridRun, None, None]:
    for run in runs:
        observer.on_started(progress, progress.start(run))
        try:
            run_in_this_process(run.recipe, out=run.folder, resume=True, observer=_Ticks(progress, observer))
        except Exception as error:
            write_text(run.log, traceback.format_exc())
            observer.on_ended(progress, progress.fail(run, failure_of(error)))
        else:
            observer.on_ended(progress, progress.finish(run))
            yield run
