"""Optional trackers beside the run folder, behind the observer interface."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.federation.observer import Observer
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.folder import RunFolder

_MOST_AT_ONCE = 1000  # metrics in a message to MLflow, which takes no more


def trackers_for(recipe: Recipe, folder: RunFolder) -> list[Observer]:
    """The trackers that the recipe switches on."""
    trackers: list[Observer] = []
    if recipe.tracking.tensorboard:
        trackers.append(TensorBoardTracker(recipe, folder))
    if recipe.tracking.mlflow:
        trackers.append(MLflowTracker(recipe, folder))
    return trackers


def scalars_of(event: dict[str, Any]) -> dict[str, float]:
    """The numbers of a round by name: losses, validation, samples, steps, bytes, seconds, shares and notes.

    No name is the beginning of another: a store of files could not keep ``bytes/up`` beside ``bytes/up/north``.
    """
    losses = ((site, term, value) for site, terms in event["losses"].items() for term, value in terms.items())
    scalars = {f"loss/{term}/{site}": value for site, term, value in losses if value is not None}
    scalars |= {f"validation/dice/{site}": value for site, value in event["validation"]["sites"].items()}
    if event["validation"]["dice"] is not None:
        scalars["validation/mean_dice"] = event["validation"]["dice"]
    for way in ("up", "down"):
        scalars[f"bytes/{way}"] = sum(event[f"bytes_{way}"].values())
        scalars |= {f"bytes_{way}/{site}": number for site, number in event[f"bytes_{way}"].items()}
    scalars |= {f"seconds/{phase}": event["seconds"][phase] for phase in ("training", "validation")}
    scalars |= {f"seconds_of_site/{site}": value for site, value in event["seconds"].get("sites", {}).items()}
    scalars |= {f"samples/{site}": number for site, number in event["samples"].items()}
    scalars |= {f"steps/{site}": number for site, number in event.get("steps", {}).items()}
    scalars["stuck_rounds"] = event.get("stuck", 0)
    scalars |= {f"stuck_rounds_of_site/{site}": number for site, number in event.get("stuck_sites", {}).items()}
    scalars |= {"sites/answered": len(event["samples"]), "sites/refused": len(event["refused"])}
    for component, sites in event.get("shared_up", {}).items():
        scalars |= {f"shared/{component}/{what}/{site}": v for site, own in sites.items() for what, v in own.items()}
    for component, notes in event.get("notes", {}).items():
        scalars |= {f"notes/{component}/{what}/{site}": v for what, sites in notes.items() for site, v in sites.items()}
    return scalars


class Point(NamedTuple):
    """A number by name, and the round that it belongs to, counted from 1."""

    name: str
    value: float
    step: int


def results_of(summary: dict[str, Any]) -> list[Point]:
    """The numbers of a finished run: its test and the tests after rounds, by site and as averages, and its totals."""
    points = _scores("test", summary, summary["rounds"])
    for number, scores in summary.get("at_rounds", {}).items():
        points += _scores("test_after_round", scores, int(number))
    totals = {f"run/{name}": summary[name] for name in ("seconds", "bytes_up", "bytes_down", "refused")}
    totals |= {f"run/seconds_{phase}": value for phase, value in summary["seconds_by_phase"].items()}
    return [*points, *(Point(name, value, summary["rounds"]) for name, value in totals.items())]


def _scores(kind: str, scores: dict[str, Any], step: int) -> list[Point]:
    """``test/dice/north`` for every site and ``test/mean_dice``; a class has a dot, ``test/dice.disc/north``."""
    values = {f"mean_{_dotted(metric)}": value for metric, value in scores["average"].items()}
    for site, metrics in scores["sites"].items():
        values |= {f"{_dotted(metric)}/{site}": value for metric, value in metrics.items()}
    points = [Point(f"{kind}/{name}", value, step) for name, value in values.items() if value is not None]
    spread = scores.get("deviation")
    return points if spread is None else [*points, *_scores(f"{kind}_deviation", spread, step)]


def _dotted(metric: str) -> str:
    return metric.replace("/", ".")


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "/-_ ." else "_" for c in name)


class _PartTracker(Observer):
    """Remembers which part of the protocol is running."""

    part = ""

    def on_start(self, part: str, sites: Any, rounds: int, done: int) -> None:  # noqa: ARG002
        """Prefix the names of a protocol with several parts."""
        self.part = "" if part == "all" else f"{part}/"


class TensorBoardTracker(_PartTracker):
    """Scalars, the recipe and the summary for TensorBoard in the run folder's ``tensorboard``."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PolyclinicError(
                "tracking.tensorboard needs the extra: pip install 'polyclinic[tensorboard]'."
            ) from error
        self.writer = SummaryWriter(str(folder.path / "tensorboard"))
        self._add_text("recipe", recipe_text(recipe))

    def on_round(self, event: dict[str, Any]) -> None:
        """One point a scalar."""
        for name, value in scalars_of(event).items():
            self.writer.add_scalar(self.part + name, value, event["round"] + 1)
        self.writer.flush()

    def on_result(self, summary: dict[str, Any]) -> None:
        """The tests and the totals, then close the file."""
        for name, value, step in results_of(summary):
            self.writer.add_scalar(name, value, step)
        self._add_text("summary", json.dumps(summary, indent=2))
        self.writer.close()

    def _add_text(self, name: str, text: str) -> None:
        """Lines as they are: TensorBoard reads Markdown, in which an indented line is code."""
        self.writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()))


class MLflowTracker(_PartTracker):
    """Parameters, metrics and the recipe as an MLflow run; a resumed run goes on with the same one."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        # MLflow reports its use to its makers unless told not to; nothing leaves a site that is not declared.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = recipe.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # MLflow 3 wants to hear that a folder of files, which needs no server, is on purpose.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.uri = uri or f"file://{(folder.path / 'mlflow').resolve()}"
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise PolyclinicError("tracking.mlflow needs the extra: pip install 'polyclinic[mlflow]'.") from error
        with self._sentence():
            self.client = MlflowClient(tracking_uri=self.uri)
            self.run = self._run(recipe, folder)

    def _run(self, recipe: Recipe, folder: RunFolder) -> str:
        marker = folder.path / "mlflow.json"
        if marker.exists() and (known := read_json(marker))["uri"] == self.uri:
            return str(known["run"])
        experiment = self.client.get_experiment_by_name("polyclinic")
        number = experiment.experiment_id if experiment else self.client.create_experiment("polyclinic")
        run: str = self.client.create_run(number, run_name=folder.path.name).info.run_id
        for key, value in {"method": recipe.method, "federation": recipe.federation, "seed": recipe.seed}.items():
            self.client.log_param(run, key, value)
        self.client.log_text(run, recipe_text(recipe), "recipe.toml")
        write_json(marker, {"uri": self.uri, "run": run})
        return run

    def on_round(self, event: dict[str, Any]) -> None:
        """One point a metric."""
        step = event["round"] + 1
        self._log([Point(self.part + name, value, step) for name, value in scalars_of(event).items()])

    def on_result(self, summary: dict[str, Any]) -> None:
        """The tests, the totals and the summary, then the end."""
        self._log(results_of(summary))
        with self._sentence():
            self.client.log_text(self.run, json.dumps(summary, indent=2), "summary.json")
            self.client.set_terminated(self.run)

    def _log(self, points: list[Point]) -> None:
        """Send points, many at a time, since a server may be far away; MLflow's names allow no commas or brackets."""
        from mlflow.entities import Metric

        now = time.time_ns() // 10**6
        metrics = [Metric(_safe(name), value, now, step) for name, value, step in points]
        with self._sentence():
            for start in range(0, len(metrics), _MOST_AT_ONCE):
                self.client.log_batch(self.run, metrics=metrics[start : start + _MOST_AT_ONCE])

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            reason = (str(error).splitlines() or ["no reason given"])[0].split(". ")[0]
            raise PolyclinicError(
                f"tracking.mlflow: {self.uri} cannot be used ({reason}); mend it and go on with --resume, "
                "or without it by --set tracking.mlflow=false."
            ) from error
