from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report import page_server
from polyclinic.report.page.live_page import watched_folder
from polyclinic.report.page_server import PageServer
from report_support import write_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    server = PageServer(watched_folder(write_run(tmp_path / "run", finished=False), None))
    thread = Thread(target=server.serve_until_over, kwargs={"every": 0.05}, daemon=True)
    thread.start()
    yield server
    server.told.set()
    thread.join(timeout=60)
    assert not thread.is_alive()


def get(server: PageServer, path: str, host: str | None = None, way: str = "GET") -> HTTPResponse:
    place = urlsplit(server.address)
    connection = HTTPConnection("127.0.0.1", place.port or 0, timeout=30)
    connection.request(way, path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def test_the_page_and_its_news_are_there_for_those_who_know_the_address(server: PageServer) -> None:
    home = urlsplit(server.address).path
    page = get(server, home)
    assert page.status == 200
    assert b"<body data-live>" in page.read()
    assert (page.headers["Cache-Control"], page.headers["X-Frame-Options"]) == ("no-store", "DENY")
    news = json.loads(get(server, f"{home}news?version=x").read())
    assert not news["over"]
    assert "opening" in news["sections"]


def test_nothing_else_is_served(server: PageServer) -> None:
    home = urlsplit(server.address).path
    assert len(server.secret) >= 32
    wrong = [
        "/",
        "/news",
        f"/{'x' * 32}/",
        f"{home}../etc/passwd",
        f"{home}recipe.toml",
        f"{home}news/",
        home.rstrip("/"),
    ]
    assert [get(server, path).status for path in wrong] == [404] * len(wrong)
    assert get(server, home, way="POST").status == 501
    assert get(server, home, way="HEAD").status == 501


def test_a_name_that_was_pointed_here_is_refused(server: PageServer) -> None:
    port = urlsplit(server.address).port
    home = urlsplit(server.address).path
    assert get(server, home, host=f"rebound.example:{port}").status == 421
    assert get(server, home, host=f"localhost:{port}").status == 200
    assert server.server_address[0] == "127.0.0.1"


def test_a_folder_that_is_gone_is_said_and_the_server_stays(server: PageServer) -> None:
    home = urlsplit(server.address).path
    (server.watched.folder / "recipe.toml").rename(server.watched.folder / "hidden")  # type: ignore[attr-defined]
    answer = get(server, f"{home}news")
    assert (answer.status, b"holds no run" in answer.read()) == (503, True)
    (server.watched.folder / "hidden").rename(server.watched.folder / "recipe.toml")  # type: ignore[attr-defined]
    assert get(server, f"{home}news").status == 200


def test_a_folder_that_stays_away_ends_it_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", finished=False)
    server = PageServer(watched_folder(run, None))
    (run / "recipe.toml").unlink()
    monkeypatch.setattr(page_server, "_LONGEST_WAIT", 0.0)
    with pytest.raises(PolyclinicError, match="holds no run"):
        server.serve_until_over(every=0.01)


def test_it_ends_when_a_browser_has_heard_that_the_run_is_over(tmp_path: Path) -> None:
    server = PageServer(watched_folder(write_run(tmp_path), None))
    thread = Thread(target=server.serve_until_over, kwargs={"every": 0.05}, daemon=True)
    thread.start()
    assert json.loads(get(server, f"{urlsplit(server.address).path}news").read())["over"]
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_port_that_is_taken_gets_a_sentence(server: PageServer) -> None:
    port = urlsplit(server.address).port or 0
    with pytest.raises(PolyclinicError, match=f"--port {port}: cannot be used"):
        PageServer(server.watched, port)
