"""The server's process: how a run ended is always written down, and nodes without keys are asked for their names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flwr.app import RecordDict

from flower_support import FakeGrid, Fault, Info, Play, Reply, carried, png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.deploy.coordinator import server_process
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles
from polyclinic.deploy.coordinator.server_process import _name_of, serve
from polyclinic.engines.flower.engine import FlowerEngine
from polyclinic.engines.flower.nodes import Nodes
from polyclinic.engines.flower.records import to_records
from polyclinic.exchange.messages import Description, Failure
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.folder import RunFolder

SITES = ("east", "north", "south")


def with_(message: Any) -> Play:
    return lambda request: carried(message)


class Asking(FakeGrid):
    """Nodes without names."""

    def send_and_receive(self, messages: Any, timeout: float) -> list[Reply]:
        (message,) = messages
        reply = self.plays[f"node-{message.metadata.dst_node_id}"](None)  # type: ignore[arg-type]
        return [reply] if reply is not None else []


def test_nodes_without_keys_are_asked_for_their_name_and_may_say_anything() -> None:
    plays: dict[str, Play] = {
        "node-1": with_(Description("north", -1, {})),
        "node-2": with_(Failure("south", -1, "no")),
        "node-3": lambda _: Reply(RecordDict({})),
        "node-4": lambda _: Reply(error=Fault(1)),
        "node-5": lambda _: None,
        "node-6": lambda _: Reply(to_records({}, {"site": ["north"]})),
        "node-7": with_(Description("stranger", -1, {})),
    }
    grid = Asking(plays, nodes={name: Info(number, "") for number, name in enumerate(plays, start=1)})
    launch = Launch("run", "seed = 1", SITES, "tiny", named=False)
    nodes = Nodes(grid, SITES, lambda number: _name_of(grid, number, launch))  # type: ignore[arg-type]
    nodes.refresh()
    assert nodes.online == ("north", "south")
    node = nodes.of("north")
    assert node is not None
    assert node.number == 1


class FakeExecution:
    """Stands for the rounds: keeps what it was given, and ends as ``outcome`` says."""

    outcome: ClassVar[Any] = {"average": {"dice": 0.5}}
    latest: ClassVar[FakeExecution]

    def __init__(self, recipe: Any, sites: Any, federation: str, folder: Any, engine_for: Any, *rest: Any) -> None:
        self.recipe, self.sites, self.federation, self.engine_for, self.resume = (
            recipe, sites, federation, engine_for, rest[-1],
        )  # fmt: skip
        type(self).latest = self

    def run(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchFiles:
    """A run folder with the plan of a run."""
    monkeypatch.setattr(server_process, "RemoteExecution", FakeExecution)
    recipe = png_recipe("far", engine={"name": "flower", "max_message_mb": 3, "deadline": 40, "grace": 5})
    Launch("run-7", recipe_text(recipe), SITES, "far", resume=True).save(tmp_path)
    return LaunchFiles(tmp_path)


def serve_run(files: LaunchFiles) -> None:
    serve(FakeGrid({}), {"run": str(files.folder.parent)})  # type: ignore[arg-type]


def test_a_run_is_served_from_its_plan_and_its_end_is_written_down(launched: LaunchFiles) -> None:
    serve_run(launched)
    assert read_json(launched.outcome) == {"finished": True, "average": {"dice": 0.5}}
    assert launched.pid.read_text() == str(os.getpid())
    execution = FakeExecution.latest
    assert (execution.sites, execution.federation, execution.resume) == (SITES, "far", True)
    engine = execution.engine_for("fold-1", execution.recipe, "the recipe")
    assert isinstance(engine, FlowerEngine)
    assert (engine.run, engine.part, engine.limit, engine.deadline, engine.grace) == (
        "run-7", "fold-1", 3 * 10**6, 40, 5,
    )  # fmt: skip
    assert "on_result" in launched.relay.read_text()


def test_a_problem_in_a_sentence_is_the_outcome_and_ends_with_code_2(
    launched: LaunchFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeExecution, "outcome", PolyclinicError("No site takes part."))
    with pytest.raises(SystemExit) as end:
        serve_run(launched)
    assert end.value.code == 2
    assert read_json(launched.outcome) == {"finished": False, "error": "No site takes part."}
    assert capsys.readouterr().err == "error: No site takes part.\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with room for 400 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a disk that is small enough to fill")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_full_is_the_outcome(
    small_disk: Path, launched: LaunchFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of the run not one byte is left: the sentence arrives, and no file has half of a line."""
    folder = RunFolder(small_disk)
    shutil.copytree(launched.folder, LaunchFiles(small_disk).folder)

    def fill_and_go_on(self: FakeExecution) -> None:
        folder.add_event({"part": "all", "round": 0})
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1000))
        for number in range(1, 1000):
            folder.add_event({"part": "all", "round": number, "more": "x" * 100})

    monkeypatch.setattr(FakeExecution, "run", fill_and_go_on)
    with pytest.raises(SystemExit) as end:
        serve_run(LaunchFiles(small_disk))
    assert end.value.code == 2
    error = read_json(LaunchFiles(small_disk).outcome)["error"]
    assert error.startswith(f"{folder.events_file}: cannot be written (No space left on device)")
    assert error.endswith("; free some space and go on with --resume.")
    assert capsys.readouterr().err == f"error: {error}\n"
    lines = folder.events_file.read_text().splitlines(keepends=True)
    assert all(json.loads(line) and line.endswith("\n") for line in lines)
    assert not list(small_disk.rglob("*.part"))


def test_a_bug_is_the_outcome_too_and_its_traceback_is_kept(
    launched: LaunchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeExecution, "outcome", ZeroDivisionError("by nothing"))
    with pytest.raises(ZeroDivisionError):
        serve_run(launched)
    assert read_json(launched.outcome) == {"finished": False, "error": "ZeroDivisionError: by nothing", "bug": True}
    assert "Traceback" in (launched.folder.parent / "problems.log").read_text()


def test_an_ordinary_flower_run_without_sites_gets_a_sentence(tmp_path: Path, tiny_recipe_file: Path) -> None:
    with pytest.raises(SystemExit):
        serve(FakeGrid({}), {"out": str(tmp_path), "recipe": str(tiny_recipe_file)})  # type: ignore[arg-type]
    assert "name the sites that take part" in read_json(LaunchFiles(tmp_path).outcome)["error"]
