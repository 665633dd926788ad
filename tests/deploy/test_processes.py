"""Programs that are started, watched and stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.processes import environment, free_port, is_alive, program, run_program, start, start_time, stop


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must happen."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def test_a_process_that_ended_is_not_the_one_that_was() -> None:
    process = subprocess.Popen(["sleep", "60"])
    began = start_time(process.pid)
    assert began == start_time(process.pid) != ""
    assert is_alive(process.pid, began)
    assert not is_alive(process.pid, "another")
    process.kill()
    until(lambda: start_time(process.pid) != began)
    assert not is_alive(process.pid, start_time(process.pid)), "it ended, though nobody has asked how"
    process.wait()
    assert start_time(process.pid) == ""
    assert not is_alive(process.pid, "")


def test_a_flower_program_neither_calls_out_nor_installs_anything(tmp_path: Path) -> None:
    variables = environment(tmp_path / "home")
    assert variables["FLWR_HOME"] == str(tmp_path / "home")
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


@pytest.mark.parametrize("script", ["sleep 60 & wait", "trap '' TERM; sleep 60; true"])
def test_stopping_ends_a_program_and_what_it_started(script: str, tmp_path: Path) -> None:
    """The second script ignores SIGTERM; what it started is killed with it."""
    process = start(["sh", "-c", f"{script} "], os.environ, None)
    until(lambda: len(children(process.pid)) == 1)
    (child,) = children(process.pid)
    started = start_time(child)
    stop(process, grace=0.3)
    assert process.poll() is not None
    until(lambda: not is_alive(child, started))
    stop(process, grace=0.3)
    stop(None)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_started_program_has_its_own_session(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the session of the user's command; the supervisor decides about the rest."""
    process = start(["sleep", "60"], os.environ, None)
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        stop(process)


def test_a_program_that_fails_gets_a_sentence() -> None:
    def shell(script: str, timeout: float = 60.0) -> str:
        return run_program(["sh", "-c", script], os.environ, "registering north", timeout)

    assert shell("echo fine") == "fine\n"
    with pytest.raises(PolyclinicError, match=r"^registering north failed: the reason$"):
        shell("echo more; echo the reason >&2; exit 1")
    with pytest.raises(PolyclinicError, match=r"^registering north failed: exit code 3$"):
        shell("exit 3")
    with pytest.raises(PolyclinicError, match=r"^registering north took longer than 0.1 s"):
        shell("sleep 60", 0.1)


def test_programs_are_found_beside_this_python_and_a_missing_one_gets_a_sentence() -> None:
    assert program("pytest") == str(Path(sys.executable).with_name("pytest"))
    with pytest.raises(PolyclinicError, match=r"no-such-program was not found; run: pip install"):
        program("no-such-program")
    assert 1024 <= free_port() <= 65535


def test_a_process_ends_with_its_owner_however_that_ends() -> None:
    """A server's own process once went on for minutes after its supervisor had been killed."""
    owner = subprocess.Popen(["sleep", "60"])
    program = f"from polyclinic.deploy.processes import end_with; end_with({owner.pid}); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program])
    time.sleep(1)
    assert process.poll() is None
    owner.kill()
    assert process.wait(50) == 0
    owner.wait()
