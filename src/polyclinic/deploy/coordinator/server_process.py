"""The server's process: from a plan to a run folder, over a grid, without a single image at hand."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json, write_text
from polyclinic.core.wording import MB
from polyclinic.deploy.coordinator.event_relay import Relay
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles
from polyclinic.deploy.processes import end_with
from polyclinic.engines.flower.engine import FlowerEngine
from polyclinic.engines.flower.nodes import Nodes
from polyclinic.engines.flower.records import from_records, to_records
from polyclinic.exchange.request import Request
from polyclinic.federation.observer import Observer, Observers
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.recipe.fingerprint import recipe_sha256
from polyclinic.runs.event_recorder import EventRecorder
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.live_view import Live
from polyclinic.runs.receipt_book import ReceiptBook
from polyclinic.runs.remote_execution import RemoteExecution, refuse_impossible
from polyclinic.runs.server_log import ServerLog
from polyclinic.runs.tracking import trackers_for

_RESERVE = 2**16  # bytes that are kept free for the outcome


def serve(grid: Grid, config: Mapping[str, Any]) -> None:
    """Serve a run to its end; how it ended is written beside it. ``owner`` is the process that it ends with."""
    if config.get("owner"):
        end_with(int(config["owner"]))
    folder = RunFolder(Path(str(config.get("run") or config.get("out") or "runs/flower")).expanduser())
    files = LaunchFiles(folder.path)
    files.folder.mkdir(parents=True, exist_ok=True)
    write_text(files.pid, str(os.getpid()))
    write_text(files.reserve, _RESERVE * " ")
    try:
        plan = Launch.load(folder.path) if config.get("run") else Launch.from_config(config, folder.path)
        # A server that was killed a moment ago may still be on its way out.
        with folder.locked(patience=60):
            summary = _serve(grid, plan, folder, files)
        _write_outcome(files, {"finished": True, "average": summary["average"]})
    except PolyclinicError as error:
        _write_outcome(files, {"finished": False, "error": str(error)})
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from error
    except Exception as error:
        with suppress(PolyclinicError):
            folder.log(traceback.format_exc())
        _write_outcome(files, {"finished": False, "error": f"{type(error).__name__}: {error}", "bug": True})
        raise


def _write_outcome(files: LaunchFiles, outcome: dict[str, Any]) -> None:
    """Say how the run ended, in the space that was kept for it: the disk may be full."""
    files.reserve.unlink(missing_ok=True)
    write_json(files.outcome, outcome)


def _serve(grid: Grid, plan: Launch, folder: RunFolder, files: LaunchFiles) -> dict[str, Any]:
    recipe = make_recipe(parse_recipe(plan.recipe, "the run's recipe"), "the run's recipe")
    refuse_impossible(recipe)
    live = Live(folder, recipe.method, plan.federation, recipe.engine.name)
    observer: Observer = Observers(
        [EventRecorder(folder), live, ServerLog(files.log), Relay(files.relay), *trackers_for(recipe, folder)]
    )
    observer.on_message(f"recipe sha256 {recipe_sha256(recipe)}")
    ask = None if plan.named else lambda number: _name_of(grid, number, plan)
    nodes = Nodes(grid, plan.sites, ask)

    receipts = ReceiptBook(folder.receipts_file, observer.on_message)

    def engine_for(part: str, shipped: Recipe, text: str) -> FlowerEngine:
        limit = int(shipped.engine.max_message_mb * MB)
        return FlowerEngine(
            grid, nodes, plan.run, part, text, limit, shipped.engine.deadline, shipped.engine.grace, observer,
            on_receipt=receipts.add,
        )  # fmt: skip

    with live:
        summary = RemoteExecution(recipe, plan.sites, plan.federation, folder, engine_for, observer, plan.resume).run()
        observer.on_result(summary)
    return summary


def _name_of(grid: Grid, number: int, plan: Launch) -> str | None:
    """Ask a node without a key which site it is; anybody could answer anything, so this is not the default."""
    _, about = Request("describe", plan.run, "all", plan.recipe).to_tensors()
    for reply in grid.send_and_receive([FlowerMessage(to_records({}, about), number, "query", ttl=120)], timeout=120):
        if not reply.has_error():
            with suppress(PolyclinicError):
                return str(from_records(reply.content, MB)[1].get("site"))
    return None
