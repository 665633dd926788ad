"""The loop over the parts of a protocol."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

import polyclinic
from polyclinic.core.tensor_files import load_tensors
from polyclinic.federation.observer import Observer
from polyclinic.runs.execution import Execution
from polyclinic.runs.folder import RunFolder
from run_files import events_of
from support import Keeper


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
