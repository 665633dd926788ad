"""Optional trackers beside the run folder, behind the observer interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.federation.observer import Observer
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.folder import RunFolder


def trackers_for(recipe: Recipe, folder: RunFolder) -> list[Observer]:
    """The trackers that the recipe switches on."""
    trackers: list[Observer] = []
    if recipe.tracking.tensorboard:
        trackers.append(TensorBoardTracker(folder))
    if recipe.tracking.mlflow:
        trackers.append(MLflowTracker(recipe, folder))
    return trackers


def scalars_of(event: dict[str, Any]) -> dict[str, float]:
    """The numbers of a round by name: losses and validation by site, bytes, seconds."""
    scalars = {f"loss/{term}/{site}": v for site, terms in event["losses"].items() for term, v in terms.items()}
    scalars |= {f"validation/dice/{site}": value for site, value in event["validation"]["sites"].items()}
    if event["validation"]["dice"] is not None:
        # Not "validation/dice": a store of files could not keep that beside the folder of the sites' values.
        scalars["validation/mean_dice"] = event["validation"]["dice"]
    scalars |= {f"bytes/{way}": sum(event[f"bytes_{way}"].values()) for way in ("up", "down")}
    return scalars | {f"seconds/{phase}": event["seconds"][phase] for phase in ("training", "validation")}


class _PartTracker(Observer):
    """Remembers which part of the protocol is running."""

    part = ""

    def on_start(self, part: str, sites: Any, rounds: int, done: int) -> None:  # noqa: ARG002
        """Prefix the names of a protocol with several parts."""
        self.part = "" if part == "all" else f"{part}/"


class TensorBoardTracker(_PartTracker):
    """Scalars for TensorBoard in the run folder's ``tensorboard``."""

    def __init__(self, folder: RunFolder) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PolyclinicError(
                "tracking.tensorboard needs the extra: pip install 'polyclinic[tensorboard]'."
            ) from error
        self.writer = SummaryWriter(str(folder.path / "tensorboard"))

    def on_round(self, event: dict[str, Any]) -> None:
        """One point a scalar."""
        for name, value in scalars_of(event).items():
            self.writer.add_scalar(self.part + name, value, event["round"] + 1)
        self.writer.flush()

    def on_result(self, summary: dict[str, Any]) -> None:  # noqa: ARG002
        """Close the file."""
        self.writer.close()


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
        """One point a metric; MLflow's names allow no commas or brackets."""
        with self._sentence():
            for name, value in scalars_of(event).items():
                safe = "".join(c if c.isalnum() or c in "/-_ ." else "_" for c in self.part + name)
                self.client.log_metric(self.run, safe, value, step=event["round"] + 1)

    def on_result(self, summary: dict[str, Any]) -> None:
        """The averages, then the end."""
        with self._sentence():
            for name, value in summary["average"].items():
                if value is not None:
                    self.client.log_metric(self.run, f"test/{name}", value)
            self.client.set_terminated(self.run)

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
