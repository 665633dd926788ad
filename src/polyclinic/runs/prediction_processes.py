"""How many processes segment images side by side, and where: forked ones on cores, programs of their own on GPUs.

Every image goes through the same code in any of them, with as many threads, so the masks are the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.forked_jobs import WorkerEndedError, run_jobs
from polyclinic.core.machine import available_cores, visible_gpus
from polyclinic.core.memory import free_memory
from polyclinic.core.processes import start, stop_all
from polyclinic.data.federation import Federation, item_header
from polyclinic.data.voxel_grid import Geometry, geometry_of
from polyclinic.engines.workers.process import can_fork
from polyclinic.federation.footprint import inference_bytes
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe
from polyclinic.runs.prediction_job import carry_out
from polyclinic.runs.prediction_plan import Wanted

Progress = Callable[[int, int], None]
"""Is told how many of how many images are done."""
PROGRAM = ("-m", "polyclinic.runs.predict_program")
_SHARE_OF_MEMORY = 0.8  # of the free memory
_COPIES_OF_IMAGE, _COPIES_OF_CLASSES = 6, 4  # as read, as floats, resampled ...; by windows, joined, on the file's grid
_WORTH_A_PROGRAM = 4  # images: a new program takes seconds to start
_RESTARTS = 3  # of a program that ends by itself


@dataclass(frozen=True)
class Places:
    """Where images are segmented: in forked processes or in programs of their own, each on one of ``gpus`` if any."""

    processes: int
    forked: bool
    gpus: tuple[str, ...] = ()


def several_gpus(recipe: Recipe) -> tuple[str, ...]:
    """The GPUs that a recipe's device leaves to choose from, if there is more than one."""
    gpus = visible_gpus() if recipe.engine.device in ("auto", "cuda") else ()
    return gpus if len(gpus) > 1 else ()


def choose_places(
    workspace: Workspace, federation: Federation, wanted: Sequence[Wanted], jobs: int | None, gpus: tuple[str, ...]
) -> Places:
    """``jobs`` processes, or one for each GPU, or for each core that the recipe's threads leave and memory allows."""
    device, threads = workspace.device.type, workspace.recipe.engine.threads
    if gpus:
        worth = max(1, len(wanted) // _WORTH_A_PROGRAM)
        return Places(min(jobs or min(len(gpus), worth), max(1, len(wanted))), False, gpus)
    forked = can_fork(device, threads)
    if jobs is not None:
        return Places(max(1, min(jobs, len(wanted))), forked)
    cores = available_cores() // threads if device == "cpu" else 1
    most = min(cores, len(wanted) if forked else len(wanted) // _WORTH_A_PROGRAM)
    if most <= 1:
        return Places(1, forked)
    fitting = int(_SHARE_OF_MEMORY * free_memory()) // image_bytes(workspace, federation, wanted)
    return Places(max(1, min(most, fitting)), forked)


def image_bytes(workspace: Workspace, federation: Federation, wanted: Sequence[Wanted]) -> int:
    """About as many bytes as a process needs for the largest of the images."""
    geometry = _largest(workspace, federation, wanted)
    if geometry is None:
        return 1
    recipe, task = workspace.recipe, federation.task
    voxels = max(prod(geometry.shape), prod(geometry.prepared_shape))
    copies = _COPIES_OF_IMAGE * task.channels + _COPIES_OF_CLASSES * len(task.classes)
    size = geometry.sample_shape
    window = tuple(min(pair) for pair in zip(recipe.data.patch or size, size, strict=True))
    batch = recipe.evaluation.batch_size if window != size else min(recipe.evaluation.batch_size, geometry.samples)
    return 4 * copies * voxels + inference_bytes(workspace, batch, window)


def _largest(workspace: Workspace, federation: Federation, wanted: Sequence[Wanted]) -> Geometry | None:
    """The geometry of the image with most voxels; files that cannot be read get their sentence later."""
    largest, item = 0, None
    for one in wanted:
        with suppress(PolyclinicError):
            voxels = prod(item_header(one.item).shape)
            if voxels > largest:
                largest, item = voxels, one.item
    with suppress(PolyclinicError):
        return geometry_of(item, federation, workspace.recipe.data) if item is not None else None
    return None


def segment_here(
    workspace: Workspace, federation: Federation, wanted: Sequence[Wanted], processes: int, progress: Progress
) -> list[str | None]:
    """Segment images in this process, or in forked copies of it; a sentence for each one that failed."""
    try:
        return run_jobs(
            lambda number: carry_out(workspace, federation, wanted[number]), len(wanted), processes, progress
        )
    except WorkerEndedError as error:
        raise PolyclinicError(
            f"a process that segments images ended {error.how}, as it does where memory runs out; masks that are "
            "written are whole, so go on with --skip-existing --jobs 1."
        ) from error


def segment_in_programs(
    arguments: Sequence[str], wanted: Sequence[Wanted], places: Places, progress: Progress
) -> list[str | None]:
    """Segment images in programs that open the run themselves; ``arguments`` tell them which, and which model."""
    answers: list[str | None] = [None] * len(wanted)
    done: SimpleQueue[tuple[int, str | None]] = SimpleQueue()
    waiting, lock = iter(range(len(wanted))), Lock()
    programs = [
        _Program(arguments, places.gpus[n % len(places.gpus)] if places.gpus else None) for n in range(places.processes)
    ]

    def take() -> Iterator[int]:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            yield number

    def serve(program: _Program) -> None:
        for number in take():
            done.put((number, program.ask(wanted[number])))

    try:
        for program in programs:
            Thread(target=serve, args=(program,), name="prediction", daemon=True).start()
        for count in range(len(wanted)):
            number, answers[number] = done.get()
            progress(count + 1, len(wanted))
    finally:
        for program in programs:
            program.restarts = 0
        stop_all(program.process for program in programs)
    return answers


class _Program:
    """One program, which is started again if it ends by itself."""

    def __init__(self, arguments: Sequence[str], gpu: str | None) -> None:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)  # plugins are found as they are here
        self.command = [sys.executable, *PROGRAM, *arguments]
        self.environment = {**os.environ, "PYTHONPATH": path, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})}
        self.restarts = _RESTARTS
        self.process = start(self.command, self.environment, None, piped=True)

    def ask(self, wanted: Wanted) -> str | None:
        """Have an image segmented; a sentence if it was not."""
        if self.process.poll() is not None and self.restarts > 0:
            self.restarts -= 1
            self.process = start(self.command, self.environment, None, piped=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write((json.dumps(wanted.as_plain()) + "\n").encode())
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            problem: str | None = json.loads(line)
            return problem
        code = self.process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return f"{wanted.item.images[0]}: its process ended {how}, as it does where memory runs out; try --jobs 1."
