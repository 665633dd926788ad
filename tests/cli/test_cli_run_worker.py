"""The process that carries out runs, with a run that takes no time: what it answers, where it writes, when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

# Stands in for the real `run`, whose imports take seconds.
WORKER = """
import os, sys, types
api = types.ModuleType("polyclinic.api")

def run(recipe, *, out, resume, observer):
    assert resume
    print("printed by a plugin")
    os.system("echo printed by a program")
    observer.on_message("a message")
    if recipe == "lasts":
        import time
        try:
            open(f"{out}/began", "w").close()
            time.sleep(600)
        finally:
            open(f"{out}/closed", "w").close()
    if recipe == "refused":
        from polyclinic.core.errors import PolyclinicError
        raise PolyclinicError("no such folder; give another.")
    if recipe == "broken":
        raise ValueError("a bug\\nin two lines")

api.run = run
sys.modules["polyclinic.api"] = api
from polyclinic.cli.run_worker import main
main()
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        stream(pipe).close()


def ask(worker: subprocess.Popen[bytes], recipe: str, out: Path) -> None:
    request = {"recipe": recipe, "out": str(out), "log": str(out / f"{recipe}.log"), "title": "fedavg seed 0"}
    stream(worker.stdin).write(json.dumps(request).encode() + b"\n")
    stream(worker.stdin).flush()


def answer(worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    return dict(json.loads(stream(worker.stdout).readline()))


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def test_runs_one_after_another_each_with_its_own_log(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for recipe, problem in (("fine", None), ("refused", "no such folder; give another."), ("again", None)):
        ask(worker, recipe, tmp_path)
        assert answer(worker) == {"problem": problem, "reusable": True}
    lines = (tmp_path / "fine.log").read_text().splitlines()
    assert sorted(lines) == ["fedavg seed 0: a message", "printed by a plugin", "printed by a program"]
    assert (tmp_path / "refused.log").read_text().endswith("error: no such folder; give another.\n")
    stream(worker.stdin).close()
    assert worker.wait(60) == 0, "there is nothing more to do"


def test_after_an_error_that_nobody_expected_it_ends(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    ask(worker, "broken", tmp_path)
    assert answer(worker) == {"problem": "ValueError: a bug", "reusable": False}
    assert worker.wait(60) == 2
    assert "Traceback" in (tmp_path / "broken.log").read_text()


@pytest.mark.parametrize("way", ["the other end is gone", "SIGTERM", "SIGTERM twice"])
def test_it_ends_in_the_middle_of_a_run_and_closes_what_is_open(
    worker: subprocess.Popen[bytes], tmp_path: Path, way: str
) -> None:
    ask(worker, "lasts", tmp_path)
    ends = time.monotonic() + 60
    while not (tmp_path / "began").exists():
        assert time.monotonic() < ends
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGINT)  # Ctrl-C is for the process that started this one
    if way == "the other end is gone":
        stream(worker.stdin).close()
    else:
        for _ in way.split()[:2]:
            worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 143
    assert (tmp_path / "closed").exists()
