"""Trackers: the run's numbers arrive, and nobody who wants none pays for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.tracking import scalars_of


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_scalars_are_named_by_what_they_are(finished: Callable[..., Path]) -> None:
    event = events_of(finished())[1]
    scalars = scalars_of(event)
    assert scalars["loss/segmentation/south"] == event["losses"]["south"]["segmentation"]
    assert scalars["validation/mean_dice"] == event["validation"]["dice"]
    assert scalars["validation/dice/north"] == event["validation"]["sites"]["north"]
    assert scalars["bytes/up"] == sum(event["bytes_up"].values())
    assert all(isinstance(value, int | float) for value in scalars.values())


def test_tensorboard_gets_every_round(tiny_recipe_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra polyclinic[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ["tracking.tensorboard=true", "protocol.kind=leave-one-site-out", "training.rounds=2"]
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides).folder
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    for part in ("without-north", "without-south"):
        points = board.Scalars(f"{part}/validation/mean_dice")
        wanted = [event["validation"]["dice"] for event in events_of(run) if event["part"] == part]
        assert [point.step for point in points] == [1, 2]
        assert [point.value for point in points] == pytest.approx(wanted)


def test_mlflow_gets_every_round_and_a_resumed_run_goes_on_with_the_same_record(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra polyclinic[mlflow] is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    overrides = ["tracking.mlflow=true", "training.rounds=2"]
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides).folder
    (run / "summary.json").unlink()
    polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides, resume=True)
    client = mlflow.MlflowClient(tracking_uri=f"file://{run / 'mlflow'}")
    experiment = client.get_experiment_by_name("polyclinic").experiment_id
    (record,) = client.search_runs([experiment])
    assert record.data.params["method"] == "fedavg"
    assert record.info.status == "FINISHED"
    points = client.get_metric_history(record.info.run_id, "validation/dice/north")
    wanted = [event["validation"]["sites"]["north"] for event in events_of(run)]
    assert [(point.step, point.value) for point in points] == [(1, wanted[0]), (2, wanted[1])]
    summary = json.loads((run / "summary.json").read_text())
    assert record.data.metrics["test/dice"] == summary["average"]["dice"]


def test_mlflow_asks_its_own_environment_variable_and_a_bad_store_gets_a_sentence(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra polyclinic[mlflow] is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://somewhere")
    with pytest.raises(PolyclinicError, match=r"tracking\.mlflow: nonsense://somewhere cannot be used .*--resume"):
        polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["tracking.mlflow=true"])


def test_a_missing_extra_says_what_to_install(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in (("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(PolyclinicError, match=rf"pip install 'polyclinic\[{name}\]'"):
            polyclinic.run(tiny_recipe_file, out=tmp_path / name, overrides=[f"tracking.{name}=true"])


def test_a_run_without_trackers_imports_neither(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MONAI imports MLflow wherever it is installed, so the modules are made impossible to import instead."""
    for module in ("torch.utils.tensorboard", "mlflow", "mlflow.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["training.rounds=1"]).folder
    assert not (run / "tensorboard").exists()
    assert not (run / "mlflow").exists()
