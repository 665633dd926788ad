"""Grids whose runs take no time: a program that stands in for the process that carries out runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyclinic.runs.grid_process as grid_process
import polyclinic.runs.grid_progress as grid_progress
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.grid_progress import GridObserver, GridProgress, RunProgress

# Without torch, so that it starts at once. What it does with a run is in the run's method.
STAND_IN = """
import json, os, sys, time
from pathlib import Path

runs = 0
for line in sys.stdin:
    request = json.loads(line)
    out, runs = Path(request["out"]), runs + 1
    recipe = Path(request["recipe"]).read_text()
    with open(request["log"], "a") as log:
        log.write("some progress\\nthe last words\\n")
    about = {"pid": os.getpid(), "runs": runs, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    about |= {"omp": os.environ["OMP_NUM_THREADS"], "recipe": recipe}
    (out / "about.json").write_text(json.dumps(about))
    method = out.name.split("-seed")[0]
    answer = {"problem": None, "reusable": True}
    if method == "dies":
        os.kill(os.getpid(), 9)
    elif method == "leaves":
        sys.exit(3)
    elif method == "refuses":
        answer["problem"] = "images: no such folder; give another."
    elif method == "breaks":
        answer = {"problem": "ValueError: no", "reusable": False}
    elif method == "lasts":
        time.sleep(600)
    else:
        (out / "summary.json").write_text("{}")
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes of grids are stand-ins from here on."""
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(grid_process, "PROGRAM", (str(program),))
    return program


def recipe_with(**sections: Any) -> Recipe:
    return make_recipe({"federation": "demo:nuclei", "engine": {"device": "cpu"}, **sections})


def grid_run(out: Path, method: str = "fedavg", seed: int = 0, recipe: Recipe | None = None) -> GridRun:
    return GridRun(f"{method} seed {seed}", method, out / f"{method}-seed{seed}", recipe or recipe_with(), out)


def about(run: GridRun) -> dict[str, Any]:
    """What the stand-in wrote down of a run."""
    return dict(json.loads((run.folder / "about.json").read_text()))


def write_live(run: GridRun, **view: Any) -> None:
    """Files of a run that goes on."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "live.json").write_text(json.dumps({"part": "all", **view}))


def rounds_done(run: GridRun, number: int, at: float, dice: float | None = None) -> None:
    """So many rounds are done, the last of them at this time."""
    write_live(run, round=number, dice=dice)
    (run.folder / "events.jsonl").write_text("{}\n")
    os.utime(run.folder / "events.jsonl", (at, at))


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(grid_progress, "time", clock)
    return clock


class Heard(GridObserver):
    """Keeps what it is told."""

    def __init__(self, then: Callable[[str], None] = lambda _: None) -> None:
        self.lines: list[str] = []
        self.most = 0
        self.then = then

    def on_plan(self, progress: GridProgress) -> None:
        self.lines.append(f"plan {len(progress.of('waiting'))} by {progress.side_by_side}")

    def on_started(self, progress: GridProgress, run: RunProgress) -> None:
        self.most = max(self.most, len(progress.of("running")))
        self.lines.append(f"started {run.run.title}")
        self.then(self.lines[-1])

    def on_ended(self, progress: GridProgress, run: RunProgress) -> None:
        self.lines.append(f"{run.status} {run.run.title}")

    def on_message(self, text: str) -> None:
        self.lines.append(text)
