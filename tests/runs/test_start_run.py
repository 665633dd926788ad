"""From a recipe to a run folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.local_execution import LocalExecution
from run_files import METHODS, SIZES, events_of, rows_of, split_of, summary_of
from support import assert_same, write_tiny_federation, write_tiny_recipe

METRICS = ["dice", "iou", "precision", "sensitivity", "hd95", "asd", "assd"]
Finished = Callable[..., Path]


def test_a_run_folder_holds_what_it_takes_to_trace_a_number(finished: Finished, tiny_federation: Path) -> None:
    run = finished()
    assert {path.name for path in run.iterdir()} == {
        "recipe.toml", "versions.json", "method.json", "task.json", "split.csv", "events.jsonl", "cases.csv",
        "summary.json", "checkpoints", "sites", ".lock", "live.json",
    }  # fmt: skip
    versions = json.loads((run / "versions.json").read_text())
    assert versions["seed"] == 0
    assert versions["torch"] == torch.__version__
    assert versions["polyclinic"] == polyclinic.__version__
    task = json.loads((run / "task.json").read_text())
    assert (task["classes"], task["channels"], task["spatial_dims"]) == (["background", "disc"], 1, 2)
    split = split_of(run)
    assert Counter(site for site, _ in split) == SIZES
    assert set(split.values()) == {"train", "val", "test"}
    digest = hashlib.sha256((run / "split.csv").read_bytes()).hexdigest()
    assert summary_of(run)["split_sha256"] == {"all": digest}
    for name in ("server", "best"):
        tensors, about = load_tensors(run / "checkpoints" / "all" / f"{name}.safetensors")
        assert tensors
        assert "round" in about
    assert not list(run.rglob("*.part"))


def test_the_recipe_in_the_folder_is_resolved_and_gives_the_same_run_again(finished: Finished, tmp_path: Path) -> None:
    run = finished()
    resolved = load_recipe(run / "recipe.toml")
    assert resolved.data.size == (16, 16)
    assert resolved.training.lr == 0.02
    again = polyclinic.run(run / "recipe.toml", out=tmp_path / "again").folder
    assert rows_of(again) == rows_of(run)
    for part in ("checkpoints/all/server", "checkpoints/all/best", "sites/north/all/round-00002"):
        assert_same(load_tensors(run / f"{part}.safetensors")[0], load_tensors(again / f"{part}.safetensors")[0])


def test_one_event_a_round_with_losses_metrics_bytes_and_seconds(finished: Finished) -> None:
    events = events_of(finished())
    assert [event["round"] for event in events] == [0, 1, 2]
    for event in events:
        assert event["part"] == "all"
        assert event["sites"] == ["north", "south"]
        assert event["samples"] == {"north": 3, "south": 2}
        assert all(terms["segmentation"] > 0 for terms in event["losses"].values())
        assert set(event["validation"]["sites"]) == {"north", "south"}
        assert event["validation"]["dice"] == pytest.approx(mean(event["validation"]["sites"].values()))
        assert set(event["seconds"]["sites"]) == {"north", "south"}
        assert event["seconds"]["training"] > 0
        assert event["refused"] == {}
    losses = [mean(terms["segmentation"] for terms in event["losses"].values()) for event in events]
    assert losses[-1] < losses[0]


def test_bytes_are_those_of_the_weights(finished: Finished) -> None:
    tensors, _ = load_tensors(finished() / "checkpoints" / "all" / "server.safetensors")
    size = sum(t.numel() * t.element_size() for name, t in tensors.items() if name.startswith("weights/"))
    for event in events_of(finished()):
        assert event["bytes_up"] == {"north": size, "south": size}
        assert event["bytes_down"] == {"north": 2 * size, "south": 2 * size}  # to train, and to validate
    summary = summary_of(finished())
    assert summary["bytes_up"] == 3 * 2 * size
    assert summary["bytes_down"] == 3 * 2 * 2 * size + 2 * size  # and the test


@pytest.mark.parametrize("method", METHODS)
def test_own_test_scores_every_test_image_and_no_other(method: str, finished: Finished) -> None:
    run = finished(method)
    rows, split = rows_of(run), split_of(run)
    assert Counter((row["site"], row["image"]) for row in rows) == {
        key: len(METRICS) for key, part in split.items() if part == "test"
    }
    assert {row["metric"] for row in rows} == set(METRICS)
    summary = summary_of(run)
    for site in SIZES:
        for metric in METRICS:
            values = [float(row["value"]) for row in rows if (row["site"], row["metric"]) == (site, metric)]
            assert summary["sites"][site][metric] == pytest.approx(mean(values))
    for metric in METRICS:
        assert summary["average"][metric] == pytest.approx(mean(summary["sites"][s][metric] for s in SIZES))


@pytest.mark.parametrize("method", METHODS)
def test_k_fold_tests_every_image_once(method: str, finished: Finished) -> None:
    run = finished(method, "protocol.kind=k-fold", "protocol.folds=2", "data.split=[0.6, 0.4, 0]", "training.rounds=1")
    tested = Counter((row["site"], row["image"]) for row in rows_of(run) if row["metric"] == "dice")
    assert tested == {(site, f"case{number}"): 1 for site, count in SIZES.items() for number in range(count)}
    assert [event["part"] for event in events_of(run)] == ["fold-1", "fold-2"]
    folds = [split_of(run, f"split-fold-{number}.csv") for number in (1, 2)]
    for key in folds[0]:
        assert [fold[key] for fold in folds].count("test") == 1
    assert not (run / "problems.log").exists()


def test_from_python_in_under_ten_lines(tiny_recipe_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    result = polyclinic.run(tiny_recipe_file, method="fedprox(mu=0.1)", overrides=["training.rounds=1"])
    assert result.summary["sites"]["north"]["dice"] >= 0
    assert result.folder == Path("runs/tiny/fedprox(mu=0.1)-seed0")
    assert (result.folder / "summary.json").is_file()


def test_a_finished_run_is_read_and_not_repeated(finished: Finished, tiny_recipe_file: Path, monkeypatch: Any) -> None:
    before = summary_of(finished())
    monkeypatch.setattr(LocalExecution, "run", lambda _: pytest.fail("trained again"))
    assert polyclinic.run(tiny_recipe_file, out=finished(), resume=True).summary == before


def test_a_federation_that_changed_is_not_resumed(tmp_path: Path) -> None:
    """Else images of the training could come into the test."""
    federation = write_tiny_federation(tmp_path / "fed")
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    polyclinic.run(recipe, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    write_tiny_federation(federation, {"north": 6, "south": 4})
    with pytest.raises(
        PolyclinicError, match=r"split\.csv: the federation's images, cases, labels or classes have changed"
    ):
        polyclinic.run(recipe, out=tmp_path / "run", resume=True)


def test_a_recipe_object_with_a_relative_federation_can_be_resumed_and_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe_file: Path
) -> None:
    write_tiny_federation(tmp_path / "fed")
    monkeypatch.chdir(tmp_path)
    settings = load_recipe(tiny_recipe_file, ["training.rounds=1"])
    recipe = polyclinic.Recipe(**{**settings.model_dump(), "federation": "fed"})
    first = polyclinic.run(recipe, out="run")
    assert polyclinic.run(recipe, out="run", resume=True).summary == first.summary
    assert load_recipe("run/recipe.toml").federation == str((tmp_path / "fed").resolve())


def test_overrides_of_a_recipe_object_are_refused_rather_than_lost(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="overrides"):
        polyclinic.run(load_recipe(tiny_recipe_file), out=tmp_path, overrides=["training.rounds=1"])


def test_an_unknown_engine_is_named(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"engine\.name = 'inproces' is not an engine, did you mean 'inprocess'"):
        polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["engine.name=inproces"])


def test_a_finished_run_notices_that_the_federation_changed(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "fed")
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    polyclinic.run(recipe, out=tmp_path / "run")
    before = (tmp_path / "run" / "task.json").read_text()
    for part in ("images", "labels"):
        (federation / "north" / part / "case0.png").unlink()
    with pytest.raises(PolyclinicError, match=r"split\.csv: the federation's images.*have changed since this run"):
        polyclinic.run(recipe, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "task.json").read_text() == before


def test_a_folder_without_a_finished_round_can_be_used_again(tiny_recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="spacing"):
        polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["data.spacing=[1,1,1,1]"])
    polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["training.rounds=1"])
