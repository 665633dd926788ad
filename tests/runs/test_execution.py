"""The loop over the parts of a protocol."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polyclinic
from polyclinic.core.tensor_files import load_tensors
from polyclinic.evaluation.aggregate import rows_from_csv, rows_to_csv
from polyclinic.federation.observer import Observer
from polyclinic.federation.site_policy import _numbered
from polyclinic.runs.execution import Execution
from polyclinic.runs.folder import RunFolder
from run_files import events_of, rows_of, summary_of
from support import Interrupted, Keeper


def test_a_finished_part_of_a_protocol_is_not_repeated(tiny_recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["protocol.kind=leave-one-site-out", "training.rounds=1"]
    first = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides)
    first.folder.joinpath("summary.json").unlink()
    (first.folder / "checkpoints" / "without-south" / "tested.json").unlink()

    class Starts(Keeper):
        parts: list[tuple[str, int]] = []  # noqa: RUF012

        def on_start(self, part: str, sites: Any, rounds: int, done: int) -> None:
            self.parts.append((part, done))

    again = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides, resume=True, observer=Starts())
    assert Starts.parts == [("without-south", 1)]
    assert again.summary["sites"] == first.summary["sites"]
    assert len(events_of(first.folder)) == 2


def test_parts_of_a_protocol_do_not_learn_from_each_other(tiny_recipe_file: Path, tmp_path: Path) -> None:
    """A site that is left out is unseen: its fold must equal the same fold trained in a process of its own order."""
    overrides = ["protocol.kind=leave-one-site-out", "training.rounds=1"]
    whole = polyclinic.run(tiny_recipe_file, out=tmp_path / "whole", overrides=overrides).folder
    parts = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert len(parts) > 1
    for name in parts:
        alone = tmp_path / f"alone-{name}"
        shutil.copytree(whole, alone)
        (alone / "summary.json").unlink()
        shutil.rmtree(alone / "checkpoints" / name)
        for site in (alone / "sites").iterdir():
            shutil.rmtree(site / name, ignore_errors=True)
        polyclinic.run(tiny_recipe_file, out=alone, overrides=overrides, resume=True)
        first, second = (load_tensors(run / "checkpoints" / name / "server.safetensors")[0] for run in (whole, alone))
        assert all(torch.equal(first[key], second[key]) for key in first), name


def test_a_warning_of_several_parts_is_told_once(tmp_path: Path) -> None:
    class NoServer(Execution):
        def open_server(self, workspace: Any, part: Any) -> Any: ...

    class Messages(Observer):
        def __init__(self) -> None:
            self.texts: list[str] = []

        def on_message(self, text: str) -> None:
            self.texts.append(text)

    messages = Messages()
    execution = NoServer("tiny", RunFolder(tmp_path), messages)
    execution.warn(["few labels", "small site"])
    execution.warn(["small site", "odd size"])
    assert messages.texts == ["warning: few labels", "warning: small site", "warning: odd size"]


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "central"])
def test_the_test_after_a_round_is_that_of_a_run_which_ends_there(
    method: str, finished: Callable[..., Path], tmp_path: Path
) -> None:
    whole = finished(method, "evaluation.rounds=[2]")
    shorter = finished(method, "training.rounds=2", "training.select=last")
    plain = finished(method)
    assert (whole / "cases-round-2.csv").read_text() == (shorter / "cases.csv").read_text()
    assert (whole / "cases.csv").read_text() == (plain / "cases.csv").read_text(), "another model was chosen"
    at_rounds = summary_of(whole)["at_rounds"]
    assert at_rounds == {"2": {key: summary_of(shorter)[key] for key in ("sites", "average")}}
    more = summary_of(whole)["bytes_down"] - summary_of(plain)["bytes_down"]
    assert (more > 0) == (method != "central")


class KilledAtTest(Observer):
    """Stands for a kill after the checkpoint of a round, before its test."""

    def on_message(self, text: str) -> None:
        if text == "testing after round 2":
            raise Interrupted


def test_a_kill_before_the_test_of_a_round_loses_nothing(
    tiny_recipe_file: Path, finished: Callable[..., Path], tmp_path: Path
) -> None:
    overrides = ["evaluation.rounds=[2]"]
    with pytest.raises(Interrupted):
        polyclinic.run(
            tiny_recipe_file, out=tmp_path / "run", method="fedbn", overrides=overrides, observer=KilledAtTest()
        )
    assert not (tmp_path / "run" / "cases-round-2.csv").exists()
    polyclinic.run(tiny_recipe_file, out=tmp_path / "run", method="fedbn", overrides=overrides, resume=True)
    for name in ("cases.csv", "cases-round-2.csv"):
        assert (tmp_path / "run" / name).read_text() == (finished("fedbn", *overrides) / name).read_text()


def test_repeated_splits_have_a_mean_and_a_deviation(finished: Callable[..., Path]) -> None:
    run = finished("fedavg", "protocol.kind=repeated-splits", "protocol.repeats=2", "training.rounds=1")
    summary = summary_of(run)
    dice = [summary["repeats"][f"repeat-{number}"]["sites"]["north"]["dice"] for number in (1, 2)]
    assert summary["sites"]["north"]["dice"] == pytest.approx(sum(dice) / 2)
    assert {row["part"] for row in rows_of(run)} == {"repeat-1", "repeat-2"}


def test_cases_with_numbers_for_names_are_others_in_every_fold(
    finished: Callable[..., Path], tiny_recipe_file: Path, tmp_path: Path
) -> None:
    """As if the sites' policies had said ``per_case_metrics = "numbered"``, which sites in this process have not."""
    overrides = ("protocol.kind=k-fold", "protocol.folds=2")
    named = finished("fedbn", *overrides)
    run = shutil.copytree(named, tmp_path / "run")
    (run / "summary.json").unlink()
    for part in (run / "checkpoints").iterdir():
        rows = rows_from_csv(part / "cases.csv")
        numbered = [row for site in ("north", "south") for row in _numbered([r for r in rows if r["site"] == site])]
        rows_to_csv(part / "cases.csv", numbered)
    polyclinic.run(tiny_recipe_file, out=run, method="fedbn", overrides=overrides, resume=True)
    for site, values in summary_of(named)["sites"].items():
        assert summary_of(run)["sites"][site] == pytest.approx(values)
    cases = {(row["site"], row["case"]) for row in rows_from_csv(run / "cases.csv")}
    assert ("north", "fold-2/case-1") in cases
    assert len(cases) == 5 + 4
