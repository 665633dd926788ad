"""The programs of Flower: where they are, and what they must not do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.processes import environment, free_port, program, run_program


def test_a_flower_program_neither_calls_out_nor_installs_anything(tmp_path: Path) -> None:
    variables = environment(tmp_path / "home")
    assert variables["FLWR_HOME"] == str(tmp_path / "home")
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


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
