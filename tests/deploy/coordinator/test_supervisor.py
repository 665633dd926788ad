"""The supervisor of the server: a port that is taken, a server process that was killed."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.deploy.coordinator import supervisor as module
from polyclinic.deploy.coordinator.launch import LaunchFiles
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.processes import free_port, start_time
from polyclinic.federation.observer import Observer


def test_a_port_that_is_taken_gets_a_sentence_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PORT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ListenAddress("127.0.0.1", listener.getsockname()[1], None)
        with (
            pytest.raises(PolyclinicError, match=r"cannot listen there \(Address already in use\); choose another"),
            CoordinatorSupervisor(tmp_path, address, Observer()),
        ):
            pass
    assert not (tmp_path / "flower" / "superlink.log").exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_a_server_process_that_was_killed_is_noticed_though_nobody_asks_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's SuperExec does not wait for what it started, so that a killed ServerApp keeps its number."""
    coordinator = CoordinatorSupervisor(tmp_path, ListenAddress("127.0.0.1", free_port(), None), Observer())
    files = LaunchFiles(tmp_path)
    link, app = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        coordinator.superlink = link
        write_text(files.pid, str(app.pid))
        coordinator._require_running(files, time.monotonic())
        app.kill()
        while start_time(app.pid) != "ended":
            time.sleep(0.02)
        with pytest.raises(PolyclinicError, match="was killed"):
            coordinator._require_running(files, time.monotonic())
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(PolyclinicError, match=r"no space is left on its disk.*--resume"):
            coordinator._require_running(files, time.monotonic())
    finally:
        for process in (link, app):
            process.kill()
            process.wait()
