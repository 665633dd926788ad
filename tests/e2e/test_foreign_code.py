"""A coordinator that wants a site to run its code, and another user of the site's machine, against a real site."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyclinic[flower]'")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc")

import tomli_w  # noqa: E402
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType  # noqa: E402
from real_federation import POLYCLINIC, descendants, kill_tree  # noqa: E402

from fleet_server import FleetServer, Run, serving  # noqa: E402
from polyclinic.deploy.site.run_guard import SERVER  # noqa: E402
from polyclinic.engines.flower.records import from_records, to_records  # noqa: E402
from polyclinic.exchange.audit import read_audit  # noqa: E402

NOBODY = 65534
COMPONENTS = {
    TaskType.SERVER_APP: {"serverapp": "evil:app", "clientapp": "evil:app"},
    TaskType.CLIENT_APP: {"serverapp": SERVER, "clientapp": "evil:app"},
    TaskType.SIMULATION: {"serverapp": SERVER, "clientapp": "evil:app"},
    TaskType.AGENT_APP: {"agentapp": "evil:app"},
}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of pytest."""
    with TemporaryDirectory(prefix="polyclinic-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def evil_bundle(marker: Path, components: dict[str, str]) -> bytes:
    """An app that leaves a mark when it is imported, under every name that Flower might look for."""
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\napp = None\n"
    about = {"name": "evil", "version": "1.0.0", "license": "Apache-2.0"}
    project = {"project": about, "tool": {"flwr": {"app": {"publisher": "evil", "components": components}}}}
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("pyproject.toml", tomli_w.dumps(project))
        for name in ("evil.py", "sitecustomize.py", "polyclinic/__init__.py"):
            archive.writestr(name, code)
    return held.getvalue()


def trapped_path(folder: Path, marker: Path) -> str:
    """A PATH on which every program that Flower starts for a task leaves a mark."""
    folder.mkdir()
    for program in {*TASK_TYPE_TO_COMMAND.values(), "flower-superexec", "flower-supernode", "flwr", "uv", "pip"}:
        script = folder / program
        script.write_text(f"#!/bin/sh\ntouch {marker}\n")
        script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def until(true: Callable[[], object], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + 200
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


def test_no_type_of_app_runs_at_a_site_and_every_attempt_is_in_its_log_and_audit(
    tiny_federation: Path, open_folder: Path
) -> None:
    marker, home = open_folder / "foreign-code-ran", open_folder / "home"
    data = open_folder / "data"
    shutil.copytree(tiny_federation / "north", data / "north")
    server = FleetServer()
    for number, task_type in enumerate(TaskType, start=1):
        components = COMPONENTS.get(task_type, {"agentapp": "evil:app"})
        server.runs[number] = Run(task_type, evil_bundle(marker, components))
        server.send(number, to_records({"weights": b"x"}, {"act": "train", "run": "evil"}))
    with serving(server), (open_folder / "out").open("wb") as out:
        environment = {**os.environ, "PATH": trapped_path(open_folder / "bin", marker), "OMP_NUM_THREADS": "1"}
        command = ["site", "--data", str(data), "--server", f"127.0.0.1:{server.port}", "--name", "north"]
        process = subprocess.Popen(
            [*POLYCLINIC, *command, "--insecure", "--home", str(home)], stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: len(server.replies) == len(TaskType), (open_folder / "out").read_text)
            family = descendants(process.pid)
            commands = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in family]
            check_other_user(home, family)
        finally:
            kill_tree(process.pid)
            process.wait(60)
    assert not marker.exists()
    assert len(commands) == 2, commands
    assert "polyclinic.deploy.site.worker" in commands[1], "the site and its worker, and nothing else"
    log, entries = (home / "site.log").read_text(), list(read_audit(home / "audit.jsonl"))
    for reply, entry, task_type in zip(server.replies, entries, TaskType, strict=True):
        reason = from_records(reply)[1]["reason"]
        assert reason.startswith("refused: the run ")
        assert task_type == TaskType.SERVER_APP or str(task_type) in reason
        assert reason in log
        assert entry["plain"]["reason"] == reason
        assert entry["act"] == ""


def check_other_user(home: Path, family: list[int]) -> None:
    """Another user of the site's machine finds no port to speak to and no file to read."""
    sockets = {str(file.readlink()) for pid in family for file in Path(f"/proc/{pid}/fd").iterdir()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            assert not (fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets), f"it listens: {line}"
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        return  # whether a file can be read by others is looked at in any case, below
    as_nobody = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    subprocess.run([*as_nobody, "cat", str(home.parent / "out")], check=True, capture_output=True)
    for name in ("audit.jsonl", "site.json", "node.txt"):
        done = subprocess.run([*as_nobody, "cat", str(home / name)], capture_output=True)
        assert done.returncode != 0
        assert b"Permission denied" in done.stderr
    assert home.stat().st_mode & 0o077 == 0
