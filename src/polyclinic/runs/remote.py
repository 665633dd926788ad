"""A run whose sites are elsewhere: the same server, protocol, test and run folder, without a federation at hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.core.version import installed_versions
from polyclinic.data.federation import Task
from polyclinic.data.splits import Split
from polyclinic.evaluation.aggregate import Row, rows_from_csv, rows_to_csv
from polyclinic.evaluation.protocols import ProtocolPart, part_names
from polyclinic.exchange.checks import printable_line
from polyclinic.exchange.messages import Description, Failure
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import NoQuorumError, Server, count_of
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.summary import summary_of
from polyclinic.runs.testing import test_part

_TASK = TypeAdapter(Task)
_PAUSES = (5, 20, 60)  # so that a site can be mended or come back
_REPEATS = len(_PAUSES)
_PAUSE = 1.0
_MATTER = ("polyclinic", "torch", "monai", "flwr")


class RemoteEngine(Engine, Protocol):
    """An engine that can also say who is there, and ask them what they are."""

    task: dict[str, Any]
    """The task that the sites agreed on: it goes with every request from then on."""

    def describe(self, sites: Sequence[str]) -> Iterable[Description | Failure]:
        """What sites say of themselves."""
        ...

    def online(self) -> tuple[str, ...]:
        """Sites that are connected now."""
        ...


EngineFor = Callable[[str, Recipe, str], RemoteEngine]


def refuse_impossible(recipe: Recipe) -> None:
    """What cannot be done where images stay at their sites gets a sentence before anything starts."""
    load_plugins(recipe.plugins)
    method = parse_method(recipe.method)
    if method.pooled:
        raise PolyclinicError(
            f"method = '{recipe.method}' puts all images in one place; use polyclinic run with the engine inprocess."
        )
    if recipe.data.size == "auto" and recipe.data.patch is None:
        raise PolyclinicError(
            "data.size = 'auto' needs all images in one place; give a size, such as data.size = [256, 256]."
        )
    if recipe.protocol.transfer:
        raise PolyclinicError(
            "protocol.transfer would carry personal weights from site to site; use polyclinic run with the engine "
            "inprocess."
        )


class RemoteExecution:
    """Waits for sites, asks what they are, trains and tests every part of the protocol."""

    def __init__(
        self, recipe: Recipe, sites: Sequence[str], federation: str, folder: RunFolder, engine_for: EngineFor,
        observer: Observer, resume: bool,
    ) -> None:  # fmt: skip
        self.recipe, self.federation, self.folder = recipe, federation, folder
        self.sites = tuple(sorted(s for s in sites if recipe.data.sites is None or s in recipe.data.sites))
        self.engine_for, self.observer, self.resume = engine_for, observer, resume
        self.parts = part_names(recipe, self.sites)
        self.splits: dict[str, dict[str, str]] = {}
        self.task: dict[str, Any] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def run(self) -> dict[str, Any]:
        """All parts that are still to do, then the summary."""
        if self.folder.summary() is None:
            first = next(iter(self.parts))
            engine = self.engine_for(first, self.recipe, self._text(self.recipe))
            self._gather(engine)
            task = self._agree(engine, first)
            workspace = build_workspace(self.recipe, task)
            for warning in workspace.warnings():
                self.observer.on_message(f"warning: {warning}")
            for name, unseen in self.parts.items():
                if not (self.folder.part(name) / "tested.json").exists():
                    self._train_and_test(workspace, name, unseen)
            write_json(self.folder.summary_file, self._summary(workspace))
        summary = self.folder.summary()
        assert summary is not None
        return summary

    def _text(self, recipe: Recipe) -> str:
        """The recipe as sites get it: where this machine keeps things is not their business."""
        return recipe_text(
            recipe.model_copy(update={"federation": self.federation, "tracking": type(recipe.tracking)()})
        )

    def _gather(self, engine: RemoteEngine) -> None:
        """Wait for all sites, and after ``engine.gather`` seconds only for a quorum, however long that takes."""
        wanted = count_of(self.recipe.training.quorum, len(self.sites))
        started, told = time.monotonic(), ""
        while True:
            there = [site for site in self.sites if site in engine.online()]
            away = [site for site in self.sites if site not in there]
            if not away or (len(there) >= wanted and time.monotonic() - started >= self.recipe.engine.gather):
                return
            text = f"waiting for {', '.join(away)} ({len(there)} of {len(self.sites)} sites are there)"
            if text != told:
                self.observer.on_message(text)
                told = text
            time.sleep(_PAUSE)

    def _agree(self, engine: RemoteEngine, part: str) -> Task:
        """The task that the sites share, and the units of distances; a site that disagrees is named."""
        known = self.folder.path / "task.json"
        binding = known.exists() and self.folder.started()  # before a round is done sites may still be mended
        tasks: dict[str, tuple[Task, bool]] = {}
        spaced: dict[str, bool] = {}
        for answer in engine.describe([site for site in self.sites if site in engine.online()]):
            refusal = answer.reason if isinstance(answer, Failure) else answer.refusal
            if refusal or isinstance(answer, Failure):
                self.observer.on_refusal(
                    -1, answer.site, f"will not take part: {refusal}", getattr(answer, "details", "")
                )
                continue
            try:
                tasks[answer.site], spaced[answer.site] = task_from(answer.task), answer.knows_spacing
            except PolyclinicError as error:
                self.observer.on_refusal(-1, answer.site, printable_line(str(error)), "")
                continue
            self.splits.setdefault(part, {})[answer.site] = answer.split_sha256
            counts = ", ".join(f"{count} {name}" for name, count in answer.images.items())
            version = answer.versions.get("polyclinic", "?")
            self.observer.on_message(printable_line(f"{answer.site}: {counts}, polyclinic {version}"))
            self.versions[answer.site] = answer.versions
            self._compare_versions(answer.site, answer.versions)
        if not tasks and not binding:
            raise NoQuorumError("No site takes part (see the reasons above); mend that and go on with --resume.")
        # What most sites say, and of equals what the first says: one site alone must not decide for the others.
        said = [tasks[site] for site in sorted(tasks)]
        task, sliced = task_from(read_json(known)) if binding else max(said, key=said.count)
        others = {site: own for site, (own, cut) in tasks.items() if (own, cut) != (task, sliced)}
        for site, own in others.items():
            self.observer.on_refusal(-1, site, f"has another task than the others ({_difference(task, own)})", "")
        wanted = count_of(self.recipe.training.quorum, len(self.sites))
        if others and len(tasks) - len(others) < wanted:
            site, own = next(iter(others.items()))
            raise PolyclinicError(
                f"Site '{site}' has another task than the others ({_difference(task, own)}), and without it there is "
                "no quorum; let all sites use one federation.toml."
            )
        self._settle(task, sliced, all(known for site, known in spaced.items() if site not in others))
        return task

    def _compare_versions(self, site: str, theirs: Mapping[str, str]) -> None:
        """Other versions may give other weights; a run goes on, but whoever compares numbers must know."""
        ours = installed_versions()
        other = [
            f"{name} {theirs.get(name, '?')} (here {ours[name]})" for name in _MATTER if theirs.get(name) != ours[name]
        ]
        if other:
            self.observer.on_message(printable_line(f"warning: {site} has other versions: {', '.join(other)}"))

    def _settle(self, task: Task, sliced: bool, spaced: bool) -> None:
        """Write down what the recipe left open, once for the whole run."""
        if self.folder.recipe_file.exists() and self.folder.started():
            units = read_json(self.folder.path / "remote.json")["units"]
        else:
            units = self.recipe.evaluation.units
            units = ("mm" if spaced else "pixel") if units == "auto" else units
        evaluation = self.recipe.evaluation.model_copy(update={"units": units})
        self.recipe = self.recipe.model_copy(update={"evaluation": evaluation})
        self.folder.open(self.recipe, self.resume)
        write_json(
            self.folder.path / "remote.json",
            {"units": units, "sites": self.sites, "split_sha256": self.splits, "versions": self.versions},
        )
        table = {**asdict(task), "volumes_as_slices": sliced}
        self.task = dict(json.loads(json.dumps(table)))
        if not table["regions"]:
            del table["regions"]
        self.folder.keep("task.json", json.dumps(table, indent=2) + "\n")

    def _train_and_test(self, workspace: Workspace, name: str, unseen: str | None) -> None:
        engine = self.engine_for(name, self.recipe, self._text(self.recipe))
        engine.task = self.task
        training = [site for site in self.sites if site != unseen]
        part = ProtocolPart(name, Split({}), tuple(training), unseen)
        server = self._server(workspace, engine, training, name)
        self.observer.on_start(name, server.sites, self.recipe.training.rounds, server.state.round)
        repeats = 0
        while not server.done:
            self._wait_for_quorum(engine, server)
            try:
                server.round()
                repeats = 0
                if unseen is not None:
                    _require_shared_model(workspace, server, unseen)
            except NoQuorumError as error:
                repeats += 1
                if repeats > _REPEATS:
                    raise
                said = str(error).partition("; mend")[0]
                pause = _PAUSE * _PAUSES[repeats - 1]
                self.observer.on_message(f"{said}; in {pause:g} s it is repeated ({repeats} of {_REPEATS}).")
                time.sleep(pause)
                server = self._server(workspace, engine, training, name)
        self._gather(engine)
        started = time.perf_counter()
        rows, facts = test_part(workspace, engine, server, part, list(self.sites))
        tested = [unseen] if unseen else self.sites
        if facts.get("untested", {}).keys() >= set(tested):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in facts["untested"].items())
            raise PolyclinicError(f"No site could be tested ({reasons}); mend that and go on with --resume.")
        for site, reason in facts.get("untested", {}).items():
            self.observer.on_refusal(server.state.round - 1, site, f"is not tested: {reason}", "")
        rows_to_csv(self.folder.part(name) / "cases.csv", rows)
        write_json(self.folder.part(name) / "tested.json", {"seconds": time.perf_counter() - started, **facts})

    def _server(self, workspace: Workspace, engine: Engine, sites: list[str], part: str) -> Server:
        """From the checkpoint: whatever a round that failed left in memory is gone."""
        return Server(workspace, engine, sites, self.folder.part(part), self.observer)

    def _wait_for_quorum(self, engine: RemoteEngine, server: Server) -> None:
        chosen, told = server.choose(server.state.round), False
        while len([site for site in chosen if site in engine.online()]) < server.quorum:
            if not told:
                self.observer.on_message(f"waiting for {server.quorum} of {', '.join(chosen)} to be there")
            told = True
            time.sleep(_PAUSE)

    def _summary(self, workspace: Workspace) -> dict[str, Any]:
        rows: list[Row] = []
        tested: dict[str, Any] = {}
        for name in self.parts:
            rows += rows_from_csv(self.folder.part(name) / "cases.csv")
            tested[name] = read_json(self.folder.part(name) / "tested.json")
        rows_to_csv(self.folder.cases_file, rows)
        return summary_of(self.recipe, self.federation, workspace, self.folder, dict(self.splits), rows, tested)


def _require_shared_model(workspace: Workspace, server: Server, unseen: str) -> None:
    """After a round, not after all of them: say that there is no model for a site that did not train."""
    missing = sorted(workspace.kept - server.checkpoint.load_model("last")[1].keys())
    if missing:
        raise PolyclinicError(
            f"Site '{unseen}' would be tested with the personal weights of others ('{missing[0]}'), which do not leave "
            "a site; use a method without kept weights, or the engine inprocess, for leave-one-site-out."
        )


def task_from(table: Mapping[str, Any]) -> tuple[Task, bool]:
    """A task as a site describes it, or as ``task.json`` holds it, and whether volumes are cut into slices."""
    plain = dict(table)
    sliced = bool(plain.pop("volumes_as_slices", False))
    unknown = sorted(plain.keys() - Task.__dataclass_fields__.keys())
    try:
        task = _TASK.validate_json(json.dumps(plain), strict=True)
    except RecursionError:
        unknown, task = ["all of it"], None
    except ValidationError as error:
        first = error.errors()[0]
        unknown, task = [".".join(map(str, first["loc"])) or "all of it"], None
    if unknown or task is None:
        raise PolyclinicError(f"The site describes its task in a way that cannot be read ({unknown[0]}).")
    if len(task.classes) < 2 or task.channels < 1 or task.spatial_dims not in (2, 3):
        raise PolyclinicError(
            f"The site describes a task of {len(task.classes)} classes, {task.channels} channels and "
            f"{task.spatial_dims} dimensions, which no network can learn."
        )
    return task, sliced


def _difference(one: Task, other: Task) -> str:
    for key, value in asdict(one).items():
        if value != getattr(other, key):
            return printable_line(f"{key} = {getattr(other, key)}, expected {value}")
    return "volumes are cut into slices at one of them only"
