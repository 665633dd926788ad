"""A process that carries out one run of a grid after another, seen from the process that started it.

Torch and MONAI take seconds to import, so a process is kept for as many runs as it lives (``cli/run_worker.py``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from polyclinic.core.files import write_text
from polyclinic.core.processes import start, stop_all
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.grid_plan import GridRun

PROGRAM = ("-m", "polyclinic.cli.run_worker")


@dataclass(frozen=True)
class Answer:
    """What a process says of its run: no problem, or a sentence; and whether it can do another one."""

    process: RunProcess
    problem: str | None
    reusable: bool


class RunProcess:
    """One process. Its answers go to ``answers``; it has one run at a time, and ``first`` at first."""

    def __init__(self, first: GridRun, environment: Mapping[str, str], answers: SimpleQueue[Answer]) -> None:
        self.environment, self.run, self._answers = environment, first, answers
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)  # plugins are found as they are here
        variables = {**os.environ, "PYTHONPATH": path, **environment}
        _empty(first.log)  # where errors of the start itself go, too
        with first.log.open("ab") as output:
            self.process = start([sys.executable, *PROGRAM], variables, output, piped=True)
        Thread(target=self._listen, name="grid run", daemon=True).start()
        self._request(first)

    def carry_out(self, run: GridRun) -> None:
        """Have the process do another run; an :class:`Answer` follows."""
        self.run = run
        _empty(run.log)
        self._request(run)

    def _request(self, run: GridRun) -> None:
        recipe = run.folder / "wanted.toml"
        write_text(recipe, recipe_text(run.recipe))
        request = {"recipe": recipe, "out": run.folder, "log": run.log, "title": run.title}
        line = json.dumps({key: str(value) for key, value in request.items()}) + "\n"
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is an answer too
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                self._answers.put(Answer(self, answer["problem"], answer["reusable"]))
        self._answers.put(Answer(self, self._how_it_ended(self.process.wait()), reusable=False))

    def _how_it_ended(self, code: int) -> str:
        if code >= 0:
            return f"its process ended with code {code}{self._last_words()}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}{self._last_words()}"

    def _last_words(self) -> str:
        lines = self.run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()})" if lines else ""


def stop_processes(processes: Iterable[RunProcess]) -> None:
    """End them at once, whatever they do, and all that they have started."""
    processes = list(processes)
    stop_all(process.process for process in processes)
    for process in processes:
        assert process.process.stdin is not None
        with suppress(BrokenPipeError):
            process.process.stdin.close()


def _empty(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
