"""A resumable grid of runs: methods x seeds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.federation.observer import Observer
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.grid_plan import Cell, GridPlan
from polyclinic.runs.start_run import run


def run_grid(
    plan: GridPlan, *, metric: str = "dice", jobs: int = 1, screen: Callable[[str], Any] | None = None
) -> None:
    """Run what is missing of the grid, whose runs must measure ``metric``."""
    load_plugins(plan.recipe.plugins)
    for method in plan.methods:
        parse_method(method)
    if metric not in plan.recipe.evaluation.metrics:
        raise PolyclinicError(
            f"--metric {metric}: not measured; evaluation.metrics holds {', '.join(plan.recipe.evaluation.metrics)}."
        )
    plan.save()
    if jobs == 1:
        for cell in plan.cells:
            _run_here(plan, cell, screen)
    else:
        with screen("grid") if screen else nullcontext(Observer()) as observer:
            _run_side_by_side(plan, jobs, observer.on_message)


def _run_here(plan: GridPlan, cell: Cell, screen: Callable[[str], Any] | None) -> None:
    with screen(_title(cell)) if screen else nullcontext(None) as observer:
        run(plan.recipe_of(cell), out=cell.folder, resume=True, observer=observer)


def _run_side_by_side(plan: GridPlan, jobs: int, say: Callable[[str], None]) -> None:
    """Each run in a process of its own; threads stay as the recipe says, so that cores are not oversubscribed."""
    waiting, done, total = list(plan.cells), 0, len(plan.cells)
    active: list[tuple[Cell, subprocess.Popen[bytes], Path]] = []
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                active.append(_start(plan, waiting.pop(0)))
                say(f"{_title(active[-1][0])}: started, its progress goes to {active[-1][2]}")
            time.sleep(0.2)
            for entry in [e for e in active if e[1].poll() is not None]:
                active.remove(entry)
                _require_success(*entry)
                done += 1
                say(f"{_title(entry[0])}: finished ({done} of {total})")
    finally:
        for _, process, _ in active:
            process.terminate()
            process.wait()


def _title(cell: Cell) -> str:
    return f"{cell.method} seed {cell.seed}"


def _start(plan: GridPlan, cell: Cell) -> tuple[Cell, subprocess.Popen[bytes], Path]:
    cell.folder.mkdir(parents=True, exist_ok=True)
    recipe, log = cell.folder / "wanted.toml", cell.folder / "output.log"
    write_text(recipe, recipe_text(plan.recipe_of(cell)))
    command = [sys.executable, "-m", "polyclinic", "run", str(recipe), "--out", str(cell.folder), "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(plan.recipe.engine.threads)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    return cell, process, log


def _require_success(cell: Cell, process: subprocess.Popen[bytes], log: Path) -> None:
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        raise PolyclinicError(
            f"{cell.method} with seed {cell.seed} ended with code {process.returncode} ({lines[-1]}); see {log}."
        )
