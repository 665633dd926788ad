"""One execution of a recipe, from files to a summary."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.data.federation import Federation, Item
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData, pool
from polyclinic.engines.registry import OpenEngine, find_engine
from polyclinic.evaluation.aggregate import Row, rows_from_csv, rows_to_csv
from polyclinic.evaluation.metric_registry import check_metrics
from polyclinic.evaluation.protocols import ProtocolPart, protocol_parts, split_files
from polyclinic.federation.observer import Observer, Observers
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.store import SiteStore, StateMemory
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe, require_federation
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.grid_plan import folder_name
from polyclinic.runs.live import Live
from polyclinic.runs.plan import (
    budget_warnings,
    open_for,
    prepare_items,
    require_some_label,
    require_training_data,
    site_data,
)
from polyclinic.runs.recorder import Recorder
from polyclinic.runs.remote import refuse_impossible
from polyclinic.runs.summary import summary_of
from polyclinic.runs.testing import check_test_data, test_part
from polyclinic.runs.tracking import trackers_for

POOLED = "@pooled"  # no folder of a federation is called so


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
) -> RunResult:
    """Execute a recipe and leave a run folder behind.

    ``recipe`` is a recipe, a file, or the name of a shipped recipe; ``overrides`` are texts such as
    ``"training.rounds=5"``. With ``resume`` a run that was interrupted goes on to the same result.
    """
    if not isinstance(recipe, Recipe):
        source, recipe = recipe, load_recipe(recipe, overrides, method=method)
        require_federation(recipe, source)
    elif list(overrides):
        raise PolyclinicError("overrides: only for a recipe's file or name; change a Recipe object itself.")
    elif method is not None:
        recipe = recipe.model_copy(update={"method": method})
    load_plugins(recipe.plugins)
    parse_method(recipe.method)
    check_metrics(recipe.evaluation)
    entry = find_engine(recipe.engine.name)
    federation, recipe = open_for(recipe)
    if not recipe.federation.startswith("demo:"):
        # A path that a program gave relative to its own folder must mean the same when the run is resumed or re-run.
        recipe = recipe.model_copy(update={"federation": str(federation.root)})
    folder = RunFolder(Path(out) if out is not None else default_folder(recipe, federation))
    with folder.locked():
        parts = _open_in(folder, recipe, federation, resume)
        finished = folder.summary()
        if finished is not None:
            return RunResult(folder.path, finished)
        if entry.opens is not None:
            return _run_in(folder, recipe, federation, parts, entry.opens, observer)
    # The server's process takes the lock of the folder from here on.
    assert entry.launches is not None
    refuse_impossible(recipe)
    entry.launches(recipe, tuple(federation.sites), federation.name, folder.path, observer or Observer())
    summary = folder.summary()
    assert summary is not None
    return RunResult(folder.path, summary)


def _open_in(folder: RunFolder, recipe: Recipe, federation: Federation, resume: bool) -> list[ProtocolPart]:
    """Start a run in a folder, or go on with one, and write down what it is about."""
    folder.open(recipe, resume)
    task = {**asdict(federation.task), "volumes_as_slices": federation.volumes_as_slices}
    if not task["regions"]:
        del task["regions"]  # runs that began before there were regions can go on
    folder.keep("task.json", json.dumps(task, indent=2) + "\n")
    parts = protocol_parts(federation, recipe, parse_method(recipe.method).all_labels)
    for name, text in split_files(parts).items():
        folder.keep(name, text)
    return parts


def _run_in(
    folder: RunFolder,
    recipe: Recipe,
    federation: Federation,
    parts: list[ProtocolPart],
    opens: OpenEngine,
    observer: Observer | None,
) -> RunResult:
    """The run itself, in this process."""
    workspace = build_workspace(recipe, federation.task)
    live = Live(folder, recipe.method, federation.name, recipe.engine.name)
    observers = Observers([Recorder(folder), live, *([observer] if observer else []), *trackers_for(recipe, folder)])
    with live:
        summary = Execution(federation, recipe, workspace, folder, opens, observers).run(parts)
        observers.on_result(summary)
    return RunResult(folder.path, summary)


def default_folder(recipe: Recipe, federation: Federation) -> Path:
    """``runs/<federation>/<method>-seed<seed>``."""
    return Path("runs") / federation.name / f"{folder_name(recipe.method)}-seed{recipe.seed}"


class Execution:
    """Runs every part of the protocol; parts that are done are read, not repeated."""

    def __init__(
        self,
        federation: Federation,
        recipe: Recipe,
        workspace: Workspace,
        folder: RunFolder,
        opens: OpenEngine,
        observer: Observer,
    ) -> None:
        self.opens = opens
        self.federation, self.recipe, self.workspace = federation, recipe, workspace
        self.folder, self.observer = folder, observer
        self._images: dict[tuple[Item, ...], ImageSet] = {}
        self._warned: set[str] = set()

    def run(self, parts: list[ProtocolPart]) -> dict[str, Any]:
        """All parts, then the summary."""
        self._warn(self.workspace.warnings())
        rows: list[Row] = []
        extras: dict[str, Any] = {}
        for part in parts:
            done = self.folder.part(part.name) / "tested.json"
            if not done.exists():
                self._train_and_test(part)
            cases = self.folder.part(part.name) / "cases.csv"
            rows += rows_from_csv(cases)
            extras[part.name] = read_json(done)
        rows_to_csv(self.folder.cases_file, rows)
        splits = {part.name: part.split.hash for part in parts}
        summary = summary_of(self.recipe, self.federation.name, self.workspace, self.folder, splits, rows, extras)
        write_json(self.folder.summary_file, summary)
        return summary

    def _train_and_test(self, part: ProtocolPart) -> None:
        data = self._data(part)
        for one in [data[part.unseen]] if part.unseen else data.values():
            check_test_data(one, self.recipe, self.observer)
        training = [pool([data[s] for s in part.train_sites], POOLED)] if self.workspace.method.pooled else []
        training = training or [data[s] for s in part.train_sites]
        for one in training:
            require_training_data(one, self.workspace)
        require_some_label(training)
        if not self.workspace.method.all_labels and not self.workspace.method.pooled:
            self._warn(budget_warnings(training, self.recipe))
        memory = StateMemory()
        sites = {
            one.site: Site(one, SiteStore(self.folder.site(part.name, one.site), memory))
            for one in [*data.values(), *training]
        }
        engine = self.opens(self.workspace, sites, self.observer)
        server = Server(self.workspace, engine, [d.site for d in training], self.folder.part(part.name), self.observer)
        self.observer.on_start(part.name, server.sites, self.recipe.training.rounds, server.state.round)
        server.fit()
        started = time.perf_counter()
        rows, extra = test_part(self.workspace, engine, server, part, list(data))
        seconds = time.perf_counter() - started
        rows_to_csv(self.folder.part(part.name) / "cases.csv", rows)
        facts = {"seconds": seconds, **extra}
        write_json(self.folder.part(part.name) / "tested.json", facts)

    def _warn(self, warnings: list[str]) -> None:
        """Each once, though several parts may find the same."""
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self.observer.on_message(f"warning: {warning}")

    def _data(self, part: ProtocolPart) -> dict[str, SiteData]:
        """Prepared images of all sites that train or test, read once for neighbouring parts that use them."""
        wanted = [*part.train_sites, *([part.unseen] if part.unseen else [])]
        items = {site: part.items(self.federation, site) for site in wanted}
        # With a budget of labels, folds see the same images with other labels: those of the last one would pile up.
        self._images = {own: images for own, images in self._images.items() if own in set(items.values())}
        for site, own in items.items():
            if own not in self._images:
                self.observer.on_message(f"reading {site} ({len(own)} images)")
                self._images[own] = prepare_items(self.federation, self.recipe, own)
        return {site: site_data(site, self._images[own], part) for site, own in items.items()}
