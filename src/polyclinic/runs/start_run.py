"""``run``: one execution of a recipe, from files to a run folder with a summary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.timing import Timeline, timed
from polyclinic.engines.registry import OpenEngine, find_engine
from polyclinic.evaluation.protocols import split_files
from polyclinic.federation.observer import Observer, Observers
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe, require_federation
from polyclinic.runs.event_recorder import EventRecorder
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.grid_plan import folder_name
from polyclinic.runs.high_quorum import refuse_high_quorum
from polyclinic.runs.live_view import Live
from polyclinic.runs.local_execution import LocalExecution
from polyclinic.runs.longer_run import change_rounds
from polyclinic.runs.out_folder import refuse_other_use
from polyclinic.runs.plan import RunPlan, plan_run
from polyclinic.runs.profile import profile_written, profiled_run
from polyclinic.runs.remote_execution import refuse_impossible
from polyclinic.runs.task_agreement import task_table
from polyclinic.runs.tracking import trackers_for


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder and its summary."""

    folder: Path
    summary: dict[str, Any]


def run(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    method: str | None = None,
    overrides: Iterable[str] = (),
    observer: Observer | None = None,
    profile: bool | Timeline = False,
) -> RunResult:
    """Execute a recipe and leave a run folder behind.

    ``recipe`` is a recipe, a file, or the name of a shipped recipe; ``overrides`` are texts such as
    ``"training.rounds=5"``. With ``resume`` a run that was interrupted goes on to the same result;
    one that was given more ``training.rounds`` goes on to the result of a run that had them from the start.
    With ``profile`` the folder also says where the time of this call went (``profile.json``, ``trace.json``); a
    ``Timeline`` may have begun earlier.
    """
    if not isinstance(recipe, Recipe):
        source, recipe = recipe, load_recipe(recipe, overrides, method=method)
        require_federation(recipe, source)
    elif list(overrides):
        raise PolyclinicError("overrides: only for a recipe's file or name; change a Recipe object itself.")
    elif method is not None:
        recipe = with_changes(recipe, {"method": method})
    if profile is False:
        return _run(recipe, out, resume, observer)
    with profiled_run(Timeline() if profile is True else profile):
        return _run(recipe, out, resume, observer)


def _run(recipe: Recipe, out: str | Path | None, resume: bool, observer: Observer | None) -> RunResult:
    with timed("plan"):
        load_plugins(recipe.plugins)  # before the look for an engine, which a plugin may bring
        entry = find_engine(recipe.engine.name)
        plan = _with_absolute_federation(plan_run(recipe))
    folder = RunFolder(Path(out) if out is not None else default_folder(plan))
    refuse_other_use(folder.path, "run")
    if not plan.method.pooled:
        refuse_high_quorum(plan.recipe, len(plan.federation.sites))
    with folder.locked():
        if resume and entry.opens is not None:
            change_rounds(folder, plan)
        _start_or_resume(folder, plan, resume)
        finished = folder.summary()
        if finished is not None:
            return RunResult(folder.path, finished)
        if entry.opens is not None:
            with profile_written(folder):
                return RunResult(folder.path, _run_here(plan, folder, entry.opens, observer))
    # The server's process takes the lock of the folder from here on.
    assert entry.launches is not None
    refuse_impossible(plan.recipe, plan.method)
    federation = plan.federation
    with profile_written(folder), timed("other processes"):
        entry.launches(plan.recipe, tuple(federation.sites), federation.name, folder.path, observer or Observer())
    summary = folder.summary()
    assert summary is not None
    return RunResult(folder.path, summary)


def _with_absolute_federation(plan: RunPlan) -> RunPlan:
    """A path that a program gave relative to its own folder must mean the same when the run is resumed or re-run."""
    if plan.recipe.federation.startswith("demo:"):
        return plan
    return replace(plan, recipe=with_changes(plan.recipe, {"federation": str(plan.federation.root)}))


def _start_or_resume(folder: RunFolder, plan: RunPlan, resume: bool) -> None:
    """Start a run in a folder, or go on with one, and write down what it is about."""
    folder.open(plan.recipe, resume)
    task = task_table(plan.task, plan.federation.volumes_as_slices)
    folder.write_fixed("task.json", json.dumps(task, indent=2) + "\n")
    for name, text in split_files(list(plan.parts)).items():
        folder.write_fixed(name, text)


def _run_here(plan: RunPlan, folder: RunFolder, open_engine: OpenEngine, observer: Observer | None) -> dict[str, Any]:
    """The run itself, in this process; its summary."""
    recipe = plan.recipe
    live = Live(folder, recipe.method, plan.federation.name, recipe.engine.name)
    recorders = [EventRecorder(folder), live, *([observer] if observer else []), *trackers_for(recipe, folder)]
    observers = Observers(recorders)
    with live:
        summary = LocalExecution(plan, folder, open_engine, observers).run()
        observers.on_result(summary)
    return summary


def default_folder(plan: RunPlan) -> Path:
    """``runs/<federation>/<method>-seed<seed>``."""
    return Path("runs") / plan.federation.name / f"{folder_name(plan.recipe.method)}-seed{plan.recipe.seed}"
