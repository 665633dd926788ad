"""The supervisor of a site: a connection with a problem is logged and can end it, and its own answers are audited."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site import message_loop
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor
from polyclinic.deploy.site.worker_process import WorkerProcess
from polyclinic.exchange.audit import read_audit


class Sleeper(WorkerProcess):
    def command_with(self, channel: int) -> list[str]:
        return ["sleep", "60"]


class Supervisor(SiteSupervisor):
    worker_type = Sleeper


@pytest.fixture
def settings(tmp_path: Path) -> SiteSettings:
    (tmp_path / "home").mkdir()
    return SiteSettings("north", str(tmp_path), str(tmp_path / "home"))


def test_a_certificate_that_is_not_trusted_is_said_once_a_minute_and_can_be_given_up(
    keys: Path, port: int, settings: SiteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    key = keys / "ours" / "hospitals" / "north" / "north.key"
    theirs = keys / "theirs" / "server" / "ca.crt"
    monkeypatch.setattr(message_loop, "_RETRY_INTERVAL", 0.01)
    connection = ServerConnection(f"127.0.0.1:{port}", key, theirs)
    with Supervisor(settings, connection, logged.append, give_up=0.5) as supervisor:
        deadline = time.monotonic() + 120
        with pytest.raises(PolyclinicError, match="is not trusted"):  # noqa: PT012
            while time.monotonic() < deadline:
                supervisor.poll()
                time.sleep(0.05)
    assert [("is not trusted" in line) for line in logged] == [True]


def test_an_answer_that_the_worker_did_not_give_is_audited_too(settings: SiteSettings) -> None:
    logged: list[str] = []
    supervisor = Supervisor(settings, ServerConnection("127.0.0.1:9"), logged.append)
    _, about = supervisor._fail("refused: no", {"run": "r", "part": "all", "broadcast": {"round": 3}})
    assert about.pop("receipt")["lines"] == 1
    assert about == {"kind": "Failure", "site": "north", "round": 3, "reason": "refused: no"}
    for hostile in ({}, {"broadcast": 5}, {"broadcast": {"round": "x"}, "run": ["a"] * 10**5}):
        assert supervisor._fail("refused: no", hostile)[1]["round"] == -1
    log = Path(settings.home) / "audit.jsonl"
    entries = list(read_audit(log))
    assert [entry["plain"]["reason"] for entry in entries] == ["refused: no"] * 4
    assert entries[0]["run"] == "r"
    log.unlink()
    log.mkdir()
    assert supervisor._fail("refused: no", {})[1]["reason"] == "the site's audit log cannot be written"
    assert "so nothing leaves" in logged[0]


def test_a_policy_with_a_mistake_lets_nothing_out_and_its_path_stays_at_the_site(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "policy.toml").write_text("minimum_images = 0")
    settings = SiteSettings("north", str(tmp_path), str(tmp_path / "home"), str(tmp_path / "policy.toml"))
    logged: list[str] = []
    supervisor = Supervisor(settings, ServerConnection("127.0.0.1:9"), logged.append)
    for ask in (supervisor._limit, lambda: supervisor._ask({}, {}, Event())):
        with pytest.raises(PolyclinicError, match="something is wrong with the site's policy") as raised:
            ask()
        assert str(tmp_path) not in str(raised.value)
    assert all(str(tmp_path) in line for line in logged)
