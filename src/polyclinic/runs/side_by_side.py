"""Runs of a grid side by side: as many processes as there is room for, each taking one run after another."""

from __future__ import annotations

from collections.abc import Generator
from queue import Empty, SimpleQueue

from polyclinic.recipe.changes import with_changes
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_process import Answer, RunProcess, stop_processes
from polyclinic.runs.grid_progress import GridObserver, GridProgress
from polyclinic.runs.grid_schedule import Room, better_to_wait, chosen_slots, starting_workers

TICK = 0.5  # seconds between two looks at the folders


class SideBySide:
    """Starts runs where there is room, hands each its share of the machine, and hears how they end."""

    def __init__(self, room: Room, jobs: int, progress: GridProgress, observer: GridObserver) -> None:
        self.room, self.jobs, self.progress, self.observer = room, jobs, progress, observer
        # More runs than the machine has slots are the user's wish: then each has one process.
        self.slots, self.crowded = max(room.slots, jobs), jobs > room.slots
        self.running: dict[RunProcess, int] = {}
        """Processes at work, with the slots that each of them takes."""
        self.idle: list[RunProcess] = []
        self.answers: SimpleQueue[Answer] = SimpleQueue()

    def run(self) -> Generator[GridRun, None, None]:
        """Do all waiting runs; gives each that has finished well."""
        try:
            while self.progress.of("waiting", "running"):
                self._start_runs()
                try:
                    answer = self.answers.get(timeout=TICK)
                except Empty:
                    self.progress.refresh()
                    self.observer.on_tick(self.progress)
                    continue
                finished = self._take(answer)
                if finished is not None:
                    yield finished
        finally:
            stop_processes([*self.running, *self.idle])

    def _start_runs(self) -> None:
        waiting = [progress.run for progress in self.progress.of("waiting")]
        free, vacancies = self.slots - sum(self.running.values()), self.jobs - len(self.running)
        if not waiting:
            return
        chosen = 1 if self.crowded else chosen_slots(waiting[0].recipe.engine, self.room)
        starting = starting_workers(free, len(waiting), vacancies, chosen)
        if chosen is None and self._better_to_wait(starting):
            return
        for run, workers in zip(waiting, starting, strict=False):
            self._start(run, workers)

    def _better_to_wait(self, starting: list[int]) -> bool:
        waiting, sites = self.progress.of("waiting"), self.progress.sites()
        left = [self.progress.run_seconds_left(progress) for progress in self.progress.of("running")]
        expected = [self.progress.expected_seconds(progress) for progress in waiting]
        seconds = [number for number in (*left, *expected) if number is not None]
        if len(seconds) < len(left) + len(waiting) or not sites:
            return False  # nothing to reckon with yet
        slots = min(self.slots, sites * len(waiting))  # a run has no use for more workers than sites
        return better_to_wait(slots, len(waiting), starting, seconds[: len(left)], max(seconds[len(left) :], default=0))

    def _start(self, run: GridRun, workers: int) -> None:
        engine = run.recipe.engine
        environment = {"OMP_NUM_THREADS": str(engine.threads), **self._pinned(workers)}
        if engine.workers is None:
            run_now = with_changes(run.recipe, {"engine.workers": workers})
            run = GridRun(run.title, run.method, run.folder, run_now, run.grid)
        process = next((process for process in self.idle if process.environment == environment), None)
        if process is not None:
            self.idle.remove(process)
            process.carry_out(run)
        else:
            stop_processes(self.idle)  # they have another environment, and take memory
            self.idle.clear()
            process = RunProcess(run, environment, self.answers)
        self.running[process] = workers
        self.observer.on_started(self.progress, self.progress.start(run))

    def _pinned(self, count: int) -> dict[str, str]:
        """The GPUs of a run that starts now: those with the fewest runs on them."""
        if not self.room.gpus:
            return {}
        taken = [name for process in self.running for name in process.environment["CUDA_VISIBLE_DEVICES"].split(",")]
        order = sorted(self.room.gpus, key=taken.count)
        return {"CUDA_VISIBLE_DEVICES": ",".join(sorted(order[:count], key=self.room.gpus.index))}

    def _take(self, answer: Answer) -> GridRun | None:
        """A process has said how its run ended, or has ended itself; gives the run if it is finished."""
        process, run = answer.process, answer.process.run
        if answer.process not in self.running:
            if process in self.idle:
                self.idle.remove(process)
            return None
        del self.running[process]
        if answer.reusable:
            self.idle.append(process)
        else:
            stop_processes([process])
        if answer.problem is not None:
            self.observer.on_ended(self.progress, self.progress.fail(run, answer.problem))
            return None
        self.observer.on_ended(self.progress, self.progress.finish(run))
        return run
