"""A real process, really killed: what is resumed ends exactly like what was left alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from interrupts import heed_interrupts

import polyclinic
from polyclinic.core.tensor_files import load_tensors
from support import assert_same, call, write_tiny_federation, write_tiny_recipe

ROUNDS = 4


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBN with Adam: global weights, kept weights and optimiser states all have to come back."""
    folder = tmp_path_factory.mktemp("kill")
    federation = write_tiny_federation(folder / "fed")
    path = write_tiny_recipe(folder / "recipe.toml", federation, rounds=ROUNDS, local_epochs=50)
    path.write_text('method = "fedbn"\n' + path.read_text())
    return path


@pytest.fixture(scope="module")
def uninterrupted(recipe: Path) -> Path:
    return polyclinic.run(recipe, out=recipe.parent / "uninterrupted").folder


def start(recipe: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    workers = ("--engine", "workers", "--set", "engine.workers=2")
    command = [sys.executable, "-m", "polyclinic", "run", str(recipe), "--out", str(out), *workers, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=heed_interrupts,
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the moment to kill never came: {process.communicate()}")
        time.sleep(0.005)


def assert_nothing_runs(run: Path) -> None:
    """Workers are forks, so their command line names the run, too; one that was killed just now may still be ending."""
    if not sys.platform.startswith("linux"):
        return
    deadline = time.monotonic() + 60
    while running := [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(run).encode() in _bytes(path) and int(path.parent.name) != os.getpid()
    ]:
        assert time.monotonic() < deadline, f"processes {running} live on"
        time.sleep(0.05)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def rounds_in_record(run: Path) -> list[int]:
    path = run / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["round"] for line in lines]


def newest_states(run: Path) -> dict[str, torch.Tensor]:
    found = {}
    for folder in sorted((run / "sites").iterdir()):
        newest = max((folder / "all").glob("round-*.safetensors"))
        found |= {f"{folder.name}/{newest.stem}/{name}": t for name, t in load_tensors(newest)[0].items()}
    return found


def assert_same_end(run: Path, other: Path) -> None:
    for name in ("server", "best"):
        one, two = (load_tensors(r / "checkpoints" / "all" / f"{name}.safetensors") for r in (run, other))
        assert_same(one[0], two[0])
        assert one[1] == two[1]
    assert_same(newest_states(run), newest_states(other))
    assert rounds_in_record(run) == rounds_in_record(other) == list(range(ROUNDS))
    assert (run / "cases.csv").read_text() == (other / "cases.csv").read_text()
    assert not list(run.rglob("*.part")), "a resumed run leaves no half-written file"


def test_two_kills_and_resumes_end_like_an_uninterrupted_run(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(recipe, run)
    wait_until(lambda: len(rounds_in_record(run)) >= 1, process)
    process.kill()
    assert_nothing_runs(run)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    process = start(recipe, run, "--resume")
    states = run / "sites" / "north" / "all"
    # North has finished a round that the record does not hold yet: south is at work, or about to be aggregated.
    wait_until(
        lambda: len(done := rounds_in_record(run)) >= 2 and (states / f"round-{len(done):05d}.safetensors").exists(),
        process,
    )
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert_nothing_runs(run)
    assert load_tensors(run / "checkpoints" / "all" / "server.safetensors")[1]["round"] < ROUNDS
    assert not (run / "summary.json").exists()

    done = call("run", recipe, "--out", run, "--resume")
    assert done.code == 0, done.err
    assert "resumed after round" in done.err
    assert_same_end(run, uninterrupted)


def test_ctrl_c_says_how_to_go_on_and_that_works(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    process = start(recipe, run)
    wait_until(lambda: len(rounds_in_record(run)) >= 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert_nothing_runs(run)
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    assert lines[-2].startswith("Interrupted. Everything up to the last finished round is kept; go on with:")
    program, *arguments = shlex.split(lines[-1])
    assert (program, arguments[-1]) == ("polyclinic", "--resume")

    done = call(*arguments)
    assert done.code == 0, done.err
    assert_same_end(run, uninterrupted)
