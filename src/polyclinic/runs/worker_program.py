"""The program of a worker that opens the run by itself: on GPUs, and where a process cannot be forked."""

from __future__ import annotations

import argparse
import socket
from contextlib import nullcontext
from pathlib import Path

from polyclinic.core.timing import Timeline
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.workers.channel import Channel
from polyclinic.engines.workers.process import prepare_child
from polyclinic.engines.workers.serving import serve
from polyclinic.federation.observer import Observer
from polyclinic.federation.profiling import profiled
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.local_execution import LocalExecution
from polyclinic.runs.plan import plan_run


def main(arguments: list[str] | None = None) -> None:
    """Open the sites of a part of a run, and serve the engine that holds the other end of the channel."""
    parser = argparse.ArgumentParser(prog="polyclinic worker")
    parser.add_argument("folder", type=Path, help="run folder")
    parser.add_argument("part", help="part of the protocol")
    parser.add_argument("--parent", type=int, required=True, help="process id that this worker belongs to")
    parser.add_argument("--channel", type=int, required=True, help="inherited file descriptor of the channel")
    parser.add_argument("--device", required=True, help="device that this worker trains on")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    options = parser.parse_args(arguments)
    prepare_child(options.parent)
    folder = RunFolder(options.folder)
    recipe = with_changes(load_recipe(folder.recipe_file), {"engine.device": options.device})
    plan = plan_run(recipe)
    execution = LocalExecution(plan, folder, InProcess, Observer())
    workspace = plan.open_workspace()
    part = next(part for part in plan.parts if part.name == options.part)
    sites, _ = execution.open_sites(workspace, part)
    with profiled(Timeline()) if options.profile else nullcontext():
        serve(workspace, sites, Channel(socket.socket(fileno=options.channel)))


if __name__ == "__main__":
    main()
