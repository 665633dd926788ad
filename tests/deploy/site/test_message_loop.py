"""The thread that speaks to the server, with a server over real HTTP that a test controls."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import tomli_w
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.error import ApiErrorCode, FlowerError

from fleet_server import FleetServer, Run, serving
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site import message_loop
from polyclinic.deploy.site.message_loop import MessageLoop
from polyclinic.deploy.site.run_guard import CLIENT, SERVER
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.engines.flower.records import from_records, to_records


def bundle(**files: str) -> bytes:
    components = {"serverapp": SERVER, "clientapp": CLIENT}
    project = tomli_w.dumps({"tool": {"flwr": {"app": {"components": components}}}})
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in {"pyproject.toml": project, **files}.items():
            archive.writestr(name, text)
    return held.getvalue()


@pytest.fixture
def server() -> Iterator[FleetServer]:
    with serving(FleetServer({1: Run(bundle=bundle())})) as running:
        yield running


class Site:
    """A loop whose worker is a function."""

    def __init__(self, server: FleetServer, folder: Path) -> None:
        self.server, self.log, self.asked = server, list[str](), list[dict[str, Any]]()
        connection = ServerConnection(f"127.0.0.1:{server.port}")
        self.loop = MessageLoop(
            "north", connection, folder / "node.txt", self.ask, self.fail, lambda: 10**7, self.log.append
        )

    def ask(self, blobs: dict[str, bytes], about: dict[str, Any], _: Event) -> Any:
        self.asked.append(about)
        if "raise" in about:
            raise {"sentence": PolyclinicError("no room"), "bug": ValueError("/srv/doe.png")}[about["raise"]]
        return blobs, {"answer": True}

    def fail(self, reason: str, request: Any) -> Any:
        return {}, {"failed": reason, "run": request.get("run")}

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not true():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def answers(self, count: int) -> list[dict[str, Any]]:
        self.until(lambda: len(self.server.replies) == count)
        return [from_records(reply)[1] for reply in self.server.replies]


@pytest.fixture
def site(server: FleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(message_loop, "_RETRY_INTERVAL", 0.05)
    made = Site(server, tmp_path)
    yield made
    made.loop.stop()
    assert not made.loop.is_alive()


def test_requests_are_passed_on_and_errors_become_answers_without_a_word_about_files(
    site: Site, server: FleetServer
) -> None:
    server.send(1, to_records({"weights": b"abc"}, {"act": "train"}))
    server.send(1, to_records({}, {"raise": "sentence", "run": "r"}))
    server.send(1, to_records({}, {"raise": "bug"}))
    server.send(1, RecordDict({"nothing": ConfigRecord({"of": "ours"})}), "query")
    server.send(1, to_records({"weights": b"x" * 20_000_000}, {}))
    site.loop.start()
    good, sentence, bug, nothing, large = site.answers(5)
    assert good == {"answer": True}
    assert sentence == {"failed": "no room", "run": "r"}
    assert bug["failed"] == "the request could not be handled (ValueError); the site's log says why"
    assert "doe" not in str(bug)
    assert any("/srv/doe.png" in line for line in site.log)
    assert "holds no plain data" in nothing["failed"]
    assert "max_mb_received" in large["failed"] or "unpacked" in large["failed"]
    assert [about.get("act") for about in site.asked] == ["train", None, None]
    assert server.calls.count("get-run") == 1, "asked once for a run"
    site.loop.stop()
    assert server.calls[-1] == "deactivate-node", "the server is told at once"


def test_a_run_of_any_other_type_or_with_files_of_its_own_is_refused_by_name(site: Site, server: FleetServer) -> None:
    for number, task_type in enumerate(TaskType, start=10):
        server.runs[number] = Run(task_type, bundle(**{"evil.py": "open('/tmp/marker', 'w')"}))
        server.send(number, to_records({}, {"act": "train"}))
    site.loop.start()
    answers = site.answers(len(TaskType))
    for answer, task_type in zip(answers, TaskType, strict=True):
        expected = "brings files of its own" if task_type == TaskType.SERVER_APP else repr(str(task_type))
        assert expected in answer["failed"]
        assert any(expected in line for line in site.log)
    assert site.asked == []


def test_a_server_that_goes_and_comes_back_finds_the_site_again(
    site: Site, server: FleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = Event()
    monkeypatch.setattr(ServerConnection, "is_listening", lambda _: up.is_set())
    site.loop.start()
    site.until(lambda: site.log)
    assert site.log == [f"nobody listens on 127.0.0.1:{server.port}; waiting for the server"]
    up.set()
    site.until(lambda: len(site.log) == 2)
    assert site.log[1] == f"connected to 127.0.0.1:{server.port}"
    server.hooks["pull-messages"] = lambda _: (503, {}, b"")
    site.until(lambda: len(site.log) > 2)
    assert site.log[2] == "the connection ended; connecting again"
    server.hooks.clear()
    server.send(1, to_records({}, {"act": "train"}))
    assert site.answers(1) == [{"answer": True}]


def test_an_answer_is_sent_again_over_a_network_that_fails_for_a_moment(site: Site, server: FleetServer) -> None:
    failures = iter([True, True])
    server.hooks["push-messages"] = lambda _: (502, {}, b"") if next(failures, False) else None
    server.send(1, to_records({}, {"act": "train"}))
    site.loop.start()
    assert site.answers(1) == [{"answer": True}]
    assert len(site.asked) == 1, "the work is not done again"


def test_the_answer_to_a_run_that_ended_is_dropped(site: Site, server: FleetServer) -> None:
    ended = FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, "").to_json("ended")
    first = iter([True])
    body = json.dumps(ended).encode()
    server.hooks["push-messages"] = lambda _: (409, {}, body) if next(first, False) else None
    server.send(1, to_records({}, {"act": "first"}))
    server.send(1, to_records({}, {"act": "second"}))
    site.loop.start()
    assert site.answers(1) == [{"answer": True}]
    assert [about["act"] for about in site.asked] == ["first", "second"]
    assert "the run of a request has ended; its answer is not sent" in site.log


def test_a_node_that_was_killed_is_taken_back_once(site: Site, server: FleetServer, tmp_path: Path) -> None:
    (tmp_path / "node.txt").write_text(f"127.0.0.1:{server.port} 99")
    body = json.dumps(FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "").to_json("no")).encode()
    server.hooks["activate-node"] = lambda _: None if "deactivate-node" in server.calls else (409, {}, body)
    site.loop.start()
    site.until(lambda: site.log)
    assert site.log == [f"connected to 127.0.0.1:{server.port}"]
    assert (tmp_path / "node.txt").read_text() == f"127.0.0.1:{server.port} 7"


@pytest.mark.parametrize(("ahead", "words"), [(9.0, "9 s ahead of"), (-400.0, "400 s behind")])
def test_a_wrong_clock_is_named_at_the_site(ahead: float, words: str, site: Site, server: FleetServer) -> None:
    def reject(_: bytes) -> Any:
        told = (datetime.now(UTC) - timedelta(seconds=ahead)).isoformat()
        return 401, {"polyclinic-reason": "clock", "polyclinic-time": told}, b""

    server.hooks["activate-node"] = reject
    site.loop.start()
    site.until(lambda: site.loop.rejected_since)
    assert words in site.loop.problem
    assert "NTP" in site.loop.problem
    site.until(lambda: server.calls.count("activate-node") > 2)
    assert site.log[0].startswith("this machine's clock is ")


def test_a_key_that_is_not_accepted_is_said_once_a_minute(site: Site, server: FleetServer) -> None:
    server.hooks["activate-node"] = lambda _: (401, {"polyclinic-reason": "unknown-key"}, b"")
    site.loop.start()
    site.until(lambda: server.calls.count("activate-node") > 3)
    assert len(site.log) == 1
    assert "does not accept the key of site 'north'" in site.log[0]
    assert site.loop.rejected_since is not None
    server.hooks.clear()
    site.until(lambda: len(site.log) == 2)
    assert site.loop.rejected_since is None


def test_a_log_that_cannot_be_written_for_a_while_does_not_silence_the_site(site: Site, server: FleetServer) -> None:
    full = Event()
    full.set()

    def log(text: str) -> None:
        if full.is_set():
            raise OSError("no space left")
        site.log.append(text)

    site.loop.log = log
    site.loop.start()
    site.until(lambda: server.calls.count("activate-node") > 2)
    full.clear()
    server.send(1, to_records({}, {"act": "train"}))
    assert site.answers(1) == [{"answer": True}]


def test_requests_that_fail_again_and_again_are_answered_more_and_more_slowly(
    site: Site, server: FleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return site.loop._stopping.is_set()

    monkeypatch.setattr(site.loop._stopping, "wait", wait)
    monkeypatch.setattr(site.loop, "_fail", lambda reason, _: ({}, {"kind": "Failure", "reason": reason}))
    for _ in range(10):
        server.send(1, RecordDict({"nothing": ConfigRecord({"of": "ours"})}), "query")
    site.loop.start()
    site.answers(10)
    site.until(lambda: max(waits) == 5.0)
