"""Execution of a recipe whose sites are elsewhere: the same server, protocol, test and run folder, but no images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.data.federation import Task
from polyclinic.data.splits import Split
from polyclinic.evaluation.protocols import ProtocolPart, part_names
from polyclinic.exchange.messages import Description, Failure
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server, count_of
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import Method, load_plugins
from polyclinic.networks.anisotropy import with_settled_network
from polyclinic.recipe import Recipe, TrackingSettings
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.execution import Execution
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.remote_rounds import fit_with_retries, wait_for_sites
from polyclinic.runs.sample_limits import SampleLimits
from polyclinic.runs.task_agreement import agree_on_task, collect_answers, task_from, task_table


class RemoteEngine(Engine, Protocol):
    """An engine that can also say which sites are connected, and ask them to describe themselves."""

    task: dict[str, Any]
    """The task that the sites agreed on: it goes with every request from then on."""

    def describe(self, sites: Sequence[str]) -> Iterable[Description | Failure]:
        """What sites say of themselves."""
        ...

    def online(self) -> tuple[str, ...]:
        """Sites that are connected now."""
        ...


EngineFor = Callable[[str, Recipe, str], RemoteEngine]
"""From a part's name, the recipe and the recipe's text for the sites to an engine."""


def refuse_impossible(recipe: Recipe, method: Method | None = None) -> None:
    """What cannot be done where images stay at their sites gets a sentence before anything starts."""
    load_plugins(recipe.plugins)
    method = method or parse_method(recipe.method)
    if method.pooled:
        raise PolyclinicError(
            f"method = '{recipe.method}' puts all images in one place; use polyclinic run with the engine inprocess."
        )
    if recipe.data.size == "auto" and recipe.data.patch is None:
        raise PolyclinicError(
            "data.size = 'auto' needs all images in one place; give a size, such as data.size = [256, 256]."
        )
    with_settled_network(recipe)
    if recipe.protocol.transfer:
        raise PolyclinicError(
            "protocol.transfer would carry personal weights from site to site; use polyclinic run with the engine "
            "inprocess."
        )
    if recipe.evaluation.training_images:
        raise PolyclinicError(
            "evaluation.training_images asks how well a model fits the images that sites have trained with, which no "
            "site tells; leave it out, or use polyclinic run with the engine inprocess."
        )


class RemoteExecution(Execution):
    """Waits for sites, lets them agree on a task, then trains and tests every part over the network."""

    def __init__(
        self, recipe: Recipe, sites: Sequence[str], federation: str, folder: RunFolder, engine_for: EngineFor,
        observer: Observer, resume: bool,
    ) -> None:  # fmt: skip
        super().__init__(federation, folder, observer)
        self.recipe, self.engine_for, self.resume = recipe, engine_for, resume
        self.sites = tuple(sorted(s for s in sites if recipe.data.sites is None or s in recipe.data.sites))
        self.quorum = count_of(recipe.training.quorum, len(self.sites))
        self.parts = [
            ProtocolPart(name, Split({}), tuple(site for site in self.sites if site != unseen), unseen)
            for name, unseen in part_names(recipe, self.sites).items()
        ]
        self.task: dict[str, Any] = {}
        self.engine: RemoteEngine
        self.limits: SampleLimits

    def run(self) -> dict[str, Any]:
        """All parts that are still to do; the summary of the run, which a finished one has already."""
        summary = self.folder.summary()
        if summary is None:
            self.engine = self._open_engine(self.parts[0].name)
            self._wait_for_sites()
            task, splits = self._settle_task()
            summary = self.run_parts(build_workspace(self.recipe, task), self.parts, splits)
        return summary

    def open_server(self, workspace: Workspace, part: ProtocolPart) -> Server:
        """An engine for the part that sends the agreed task along, and a server at the part's checkpoint."""
        self.engine = self._open_engine(part.name)
        self.engine.task = self.task
        return self._server(workspace, part)

    def train(self, server: Server, part: ProtocolPart) -> Server:
        """The rounds, repeated below the quorum; then wait for those that were away, so that they are tested."""

        def check_round(current: Server) -> None:
            if part.unseen is not None:
                _require_shared_model(current, part.unseen)
            self.test_round(current, part)

        workspace = server.workspace
        self.test_round(server, part)
        server = fit_with_retries(
            server, lambda: self._server(workspace, part), self.engine.online, check_round, self.observer
        )
        self._wait_for_sites()
        return server

    def test_round(self, server: Server, part: ProtocolPart) -> None:
        """Wait for those that are away first, as before the last test."""
        if server.state.round in self.recipe.evaluation.rounds:
            self._wait_for_sites()
        super().test_round(server, part)

    def _open_engine(self, part: str) -> RemoteEngine:
        """Sites get the recipe without what is this machine's business: where it keeps things."""
        sent = with_changes(self.recipe, {"federation": self.federation_name, "tracking": TrackingSettings()})
        return self.engine_for(part, self.recipe, recipe_text(sent))

    def _server(self, workspace: Workspace, part: ProtocolPart) -> Server:
        """From the checkpoint: whatever a round that failed left in memory is gone."""
        folder, sites = self.folder.part(part.name), list(part.train_sites)
        return Server(workspace, self.engine, sites, folder, self.observer, self.limits.problem)

    def _wait_for_sites(self) -> None:
        wait_for_sites(self.engine.online, self.sites, self.quorum, self.recipe.engine.gather, self.observer)

    def _settle_task(self) -> tuple[Task, dict[str, dict[str, str]]]:
        """Let the sites agree, and write down what the recipe left open, once for the whole run.

        Gives the task, and the marks of the sites' splits by part: sites describe the first one.
        """
        file, started = self.folder.path / "task.json", self.folder.started()
        connected = self.engine.online()
        answers = collect_answers(self.engine.describe([s for s in self.sites if s in connected]), self.observer)
        # Before a round is done sites may still be mended, and then agree on another task.
        binding = task_from(read_json(file)) if file.exists() and started else None
        (task, sliced), spaced = agree_on_task(answers, binding, self.quorum, self.observer)
        self.limits = SampleLimits(answers.images, sliced, lambda sites: self.engine.describe(sites))
        units = self._units(spaced)
        self.recipe = with_changes(self.recipe, {"evaluation.units": units})
        self.folder.open(self.recipe, self.resume)
        splits = {self.parts[0].name: answers.splits} if answers.splits else {}
        write_json(
            self.folder.path / "remote.json",
            {"units": units, "sites": self.sites, "split_sha256": splits, "versions": answers.versions},
        )
        self.task = dict(json.loads(json.dumps({**asdict(task), "volumes_as_slices": sliced})))
        self.folder.write_fixed("task.json", json.dumps(task_table(task, sliced), indent=2) + "\n")
        return task, splits

    def _units(self, spaced: bool) -> str:
        """The unit of distances: that of the run so far, or of the recipe, or what the files of all sites allow."""
        if self.folder.recipe_file.exists() and self.folder.started():
            return str(read_json(self.folder.path / "remote.json")["units"])
        units = self.recipe.evaluation.units
        return ("mm" if spaced else "pixel") if units == "auto" else units


def _require_shared_model(server: Server, unseen: str) -> None:
    """After a round, not after all of them: say that there is no model for a site that did not train."""
    missing = sorted(server.workspace.kept - server.checkpoint.load_model("last")[1].keys())
    if missing:
        raise PolyclinicError(
            f"Site '{unseen}' would be tested with the personal weights of others ('{missing[0]}'), which do not leave "
            "a site; use a method without kept weights, or the engine inprocess, for leave-one-site-out."
        )
