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
from polyclinic.runs.tracking import results_of, scalars_of


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_scalars_are_named_by_what_they_are(finished: Callable[..., Path]) -> None:
    event = events_of(finished())[1]
    scalars = scalars_of(event)
    assert scalars["loss/segmentation/south"] == event["losses"]["south"]["segmentation"]
    assert scalars["validation/mean_dice"] == event["validation"]["dice"]
    assert scalars["validation/dice/north"] == event["validation"]["sites"]["north"]
    assert scalars["bytes/up"] == sum(event["bytes_up"].values())
    assert scalars["bytes_down/south"] == event["bytes_down"]["south"]
    assert scalars["seconds_of_site/north"] == event["seconds"]["sites"]["north"]
    assert scalars["samples/north"] == event["samples"]["north"]
    assert (scalars["sites/answered"], scalars["sites/refused"]) == (2, 0)
    assert all(isinstance(value, int | float) for value in scalars.values())


def test_a_loss_that_was_no_number_is_no_point(finished: Callable[..., Path]) -> None:
    event = events_of(finished())[1]
    event["losses"]["south"]["segmentation"] = None
    scalars = scalars_of(event)
    assert "loss/segmentation/south" not in scalars
    assert "loss/segmentation/north" in scalars


def numbers(value: Any) -> int:
    """How many numbers there are in plain data."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return int(isinstance(value, int | float)) if inner is None else sum(map(numbers, inner))


def test_no_number_of_a_round_is_left_out(finished: Callable[..., Path]) -> None:
    """Of a method that shares and notes something; beside them there are four sums of a round."""
    event = events_of(finished("fedbcs+norm_clipping"))[1]
    assert event["notes"]["norm_clipping"].keys() == {"norm", "factor"}
    assert event["shared_up"]["cdpa"]["north"].keys() == {"bytes", "prototypes"}
    scalars = scalars_of(event)
    assert scalars["notes/norm_clipping/norm/south"] == event["notes"]["norm_clipping"]["norm"]["south"]
    assert scalars["shared/cdpa/prototypes/north"] == event["shared_up"]["cdpa"]["north"]["prototypes"]
    kept = (
        "losses",
        "validation",
        "samples",
        "steps",
        "stuck",
        "stuck_sites",
        "bytes_up",
        "bytes_down",
        "shared_up",
        "notes",
        "seconds",
    )
    sums = {"bytes/up", "bytes/down", "sites/answered", "sites/refused"}
    assert len(scalars.keys() - sums) == sum(numbers(event[key]) for key in kept)
    assert event.keys() - set(kept) == {"part", "round", "sites", "refused", "best_round", "warnings"}


def test_stuck_sites_are_numbers_of_theirs(finished: Callable[..., Path]) -> None:
    event = {**events_of(finished())[1], "stuck_sites": {"south": 6}}
    assert scalars_of(event)["stuck_rounds_of_site/south"] == 6


def test_results_are_tests_by_site_and_class_tests_after_rounds_and_totals() -> None:
    table = {"sites": {"a": {"dice": 0.5, "dice/disc": 0.4}, "b": {"dice": None}}, "average": {"dice": 0.5}}
    spread = {"sites": {"a": {"dice": 0.1}}, "average": {"dice": 0.2}}
    summary = {
        **table, "rounds": 9, "at_rounds": {"3": table}, "deviation": spread, "seconds": 7.0, "bytes_up": 5,
        "bytes_down": 6, "refused": 1, "seconds_by_phase": {"test": 2.0},
    }  # fmt: skip
    assert {(point.name, point.step): point.value for point in results_of(summary)} == {
        ("test/mean_dice", 9): 0.5, ("test/dice/a", 9): 0.5, ("test/dice.disc/a", 9): 0.4,
        ("test_deviation/mean_dice", 9): 0.2, ("test_deviation/dice/a", 9): 0.1,
        ("test_after_round/mean_dice", 3): 0.5, ("test_after_round/dice/a", 3): 0.5,
        ("test_after_round/dice.disc/a", 3): 0.4,
        ("run/seconds", 9): 7.0, ("run/bytes_up", 9): 5, ("run/bytes_down", 9): 6, ("run/refused", 9): 1,
        ("run/seconds_test", 9): 2.0,
    }  # fmt: skip


def test_no_name_is_the_beginning_of_another(finished: Callable[..., Path]) -> None:
    """A store of files has a folder for what comes before a slash."""
    run = finished("fedbcs+norm_clipping")
    summary = json.loads((run / "summary.json").read_text())
    names = [*scalars_of(events_of(run)[1]), *(point.name for point in results_of(summary))]
    assert not [(one, other) for one in names for other in names if other.startswith(f"{one}/")]


def test_tensorboard_gets_every_round(tiny_recipe_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra polyclinic[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overrides = ["tracking.tensorboard=true", "protocol.kind=leave-one-site-out", "training.rounds=2"]
    overrides.append("evaluation.rounds=[1]")
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides).folder
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    for part in ("without-north", "without-south"):
        points = board.Scalars(f"{part}/validation/mean_dice")
        wanted = [event["validation"]["dice"] for event in events_of(run) if event["part"] == part]
        assert [point.step for point in points] == [1, 2]
        assert [point.value for point in points] == pytest.approx(wanted)
    summary = json.loads((run / "summary.json").read_text())
    (point,) = board.Scalars("test/dice/north")
    assert (point.step, point.value) == (2, pytest.approx(summary["sites"]["north"]["dice"]))
    (point,) = board.Scalars("test_after_round/mean_dice")
    assert (point.step, point.value) == (1, pytest.approx(summary["at_rounds"]["1"]["average"]["dice"]))
    assert {"recipe/text_summary", "summary/text_summary"} <= set(board.Tags()["tensors"])


def test_mlflow_gets_every_round_and_a_resumed_run_goes_on_with_the_same_record(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra polyclinic[mlflow] is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    overrides = ["tracking.mlflow=true", "training.rounds=2", "evaluation.rounds=[1]"]
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
    assert record.data.metrics["test/mean_dice"] == summary["average"]["dice"]
    assert record.data.metrics["test/hd95/south"] == summary["sites"]["south"]["hd95"]
    assert record.data.metrics["test_after_round/dice/north"] == summary["at_rounds"]["1"]["sites"]["north"]["dice"]
    assert record.data.metrics["run/bytes_up"] == summary["bytes_up"]
    assert {file.path for file in client.list_artifacts(record.info.run_id)} == {"recipe.toml", "summary.json"}


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
