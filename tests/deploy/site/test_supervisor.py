"""The supervisor of a site: problems with the connection are logged once a minute, and can end it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor


def test_a_certificate_that_is_not_trusted_is_said_once_a_minute_and_can_be_given_up(
    keys: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SuperNode is started against it, which would only say that a connection ended that there never was."""
    logged: list[str] = []
    settings = SiteSettings("north", str(tmp_path), str(tmp_path / "home"))
    key = keys / "ours" / "hospitals" / "north" / "north.key"
    theirs = keys / "theirs" / "server" / "ca.crt"
    monkeypatch.setattr("polyclinic.deploy.site.supervisor._PROBE_INTERVAL", 0.0)
    monkeypatch.setattr(SiteSupervisor, "worker_command", lambda _: ["sleep", "60"])
    connection = ServerConnection(f"127.0.0.1:{port}", key, theirs)
    with SiteSupervisor(settings, connection, logged.append) as supervisor:
        supervisor.poll()
        supervisor.poll()
        assert [("is not trusted" in line) for line in logged] == [True]
        assert supervisor.node.process is None
        supervisor.give_up = 0.5
        deadline = time.monotonic() + 120
        with pytest.raises(PolyclinicError, match="is not trusted"):  # noqa: PT012
            while time.monotonic() < deadline:
                supervisor.poll()
                time.sleep(0.05)
