"""``polyclinic watch``: a folder, and a real server over TLS."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from polyclinic.core.files import write_json
from polyclinic.report import page_server
from polyclinic.runs import live_source
from report_support import write_grid
from support import call

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from polyclinic.deploy.coordinator.gate import LIVE_FILE, LIVE_TOKEN, Gate  # noqa: E402
from polyclinic.deploy.keys.key_folders import ServerKeys, make_demo_keys, make_server_keys  # noqa: E402

Finished = Callable[..., Path]
TOKEN = "a-token-of-the-test"


def a_view(**more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "method": "fedavg", "federation": "tiny", "engine": "flower", "part": "all", "round": 1, "rounds": 3,
        "started": now - 60, "updated": now, "finished": False, "dice": 0.5, "best_round": 1, "best_dice": 0.5,
        "sites": {"north": {"status": "training", "since": now}}, "lines": [], "said": 0, **more,
    }  # fmt: skip


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A run folder whose run is under way."""
    write_json(tmp_path / "run" / "live.json", a_view())
    return tmp_path / "run"


def during_the_pause(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let something happen between two reads of a source, however long a read takes."""
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=lambda seconds: act())
    monkeypatch.setattr(live_source, "time", clock)


def wrong(*arguments: object) -> str:
    """The one sentence of a call that fails."""
    done = call("watch", *arguments)
    assert (done.code, done.out) == (2, ""), done
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert line[-1] in ".?"
    return line.removeprefix("error: ")


def test_a_finished_run_is_shown_and_its_average(finished: Finished) -> None:
    folder = finished()
    summary = json.loads((folder / "summary.json").read_text())
    done = call("watch", folder)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "fedavg on tiny, engine auto"
    assert lines[-1].startswith("Finished; average over sites (overlaps in %): ")
    assert f"dice {100 * summary['average']['dice']:.2f}" in lines[-1]
    assert json.loads(call("watch", folder, "--json").out)["average"] == summary["average"]


def test_once(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updated = json.loads((live / "live.json").read_text())["updated"]
    monkeypatch.setattr(live_source, "time", SimpleNamespace(time=lambda: updated))
    done = call("watch", live, "--once")
    assert (done.code, done.err) == (0, "")
    assert "round 1/3 done, elapsed 1 min 0 s" in done.out
    assert "north  training" in done.out
    view = json.loads((live / "live.json").read_text())
    assert json.loads(call("watch", live, "--json").out) == view


def test_a_run_without_live_json(finished: Finished, tmp_path: Path) -> None:
    older = shutil.copytree(finished(), tmp_path / "older")
    (older / "live.json").unlink()
    (older / "summary.json").unlink()
    done = call("watch", older, "--once")
    assert done.code == 0
    for words in ("fedavg on tiny", "round 3/3 done", "north  done", "There is no live.json here; this is the record"):
        assert words in done.out
    shutil.copy(finished() / "summary.json", older)
    assert call("watch", older).out.splitlines()[-1].startswith("Finished; average")


def test_the_summary_has_the_last_word(live: Path) -> None:
    write_json(live / "summary.json", {"average": {"dice": 0.25}})
    assert "dice 25.00" in call("watch", live).out


def test_a_run_that_stopped_ends_the_watch_with_1(live: Path) -> None:
    write_json(live / "flower" / "outcome.json", {"finished": False, "error": "No site takes part."})
    done = call("watch", live)
    assert done.code == 1
    assert done.out.splitlines()[-1].endswith("ago: No site takes part. (go on with --resume)")


def test_changes_are_lines_where_there_is_no_terminal(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = a_view(round=3, finished=True, average={"dice": 0.5}, lines=["hello"], said=1)
    during_the_pause(monkeypatch, lambda: write_json(live / "live.json", view))
    done = call("watch", live, "--every", "0.1")
    assert done.out.splitlines() == [
        "fedavg on tiny, engine flower",
        "round 1/3 done, validation Dice 0.500 (best 0.500 in round 1); training: north",
        "hello",
        "round 3/3 done, validation Dice 0.500 (best 0.500 in round 1); training: north",
        "Finished; average over sites (overlaps in %): dice 50.00",
    ]


def test_a_terminal_gets_a_screen(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    end = a_view(finished=True, average={"dice": 0.5})
    during_the_pause(monkeypatch, lambda: write_json(live / "live.json", end))
    done = call("watch", live, "--every", "0.1")
    assert done.code == 0
    assert "\x1b[1A" in done.out, "it renews itself"
    assert "Finished; average over sites (overlaps in %): dice 50.00" in done.out
    assert done.out.endswith("\x1b[?25h"), "the cursor is back"


def test_ctrl_c_is_quiet(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live_source.time, "sleep", interrupt)
    done = call("watch", live)
    assert (done.code, done.err) == (130, "")


def test_a_page_in_the_browser_ends_with_the_run(
    finished: Finished, live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "_LONGEST_WAIT", 0.0)  # nobody opens it
    done = call("watch", finished(), "--web", "--no-open", "--every", "0.1")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", done.out.splitlines()[0])
    grid = write_grid(tmp_path / "grid", ("fedavg",), seeds=(0,))
    assert call("watch", grid, "--web", "--no-open", "--every", "0.1").code == 0
    write_json(live / "live.json", a_view(stopped="No site takes part."))
    assert call("watch", live, "--web", "--no-open", "--every", "0.1").code == 1, "a folder with its live view alone"


def test_wrong_uses_of_the_page_get_a_sentence(finished: Finished, tmp_path: Path) -> None:
    assert wrong(finished(), "--port", "8000").startswith("--port, --no-open and --plugins are for --web")
    assert wrong(finished(), "--web", "--once").startswith("--web goes on until the run is over")
    assert wrong(finished(), "--web", "--insecure").startswith("--ca, --token-file and --insecure are for HOST:PORT")
    assert wrong(tmp_path, "--web").startswith(f"{tmp_path}: not a run folder")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert wrong(finished(), "--web", "--port", port).startswith(f"--port {port}: cannot be used")


def test_wrong_folders_get_a_sentence(live: Path, tmp_path: Path) -> None:
    assert wrong(tmp_path / "none").startswith(f"{tmp_path / 'none'}: no such folder")
    assert wrong(tmp_path).startswith(f"{tmp_path}: not a run folder (it has no live.json and no recipe.toml)")
    (tmp_path / "several").mkdir()
    (tmp_path / "several" / "grid.json").write_text("{}")
    assert "holds several runs; give one of their folders, or --web" in wrong(tmp_path / "several")
    assert wrong(live / "live.json").startswith(f"{live / 'live.json'}: a file; give the run folder")
    assert wrong(live, "--insecure").startswith("--ca, --token-file and --insecure are for HOST:PORT")
    for text in ("{", "[]", '{"sites": 3}', '{"sites": {"a": 3}}', '{"sites": {}, "dice": "x"}'):
        (live / "live.json").write_text(text)
        assert wrong(live).startswith(f"{live / 'live.json'}: ")


def test_wrong_addresses_get_a_sentence(tmp_path: Path) -> None:
    token, no_ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(TOKEN)
    no_ca.write_text("no certificate")
    for target in ("https://host:8443", "host:", "host:port", ":8443", "host:8443/live", "a:b:1", "host:123456"):
        assert wrong(target).startswith(
            f"{target}: neither a folder nor HOST:PORT; expected such as fl.example.org:8443"
        )
    assert wrong("host:99999").startswith("host:99999: 99999 is not a port")
    assert wrong("host:8443").startswith("host:8443: give --ca ca.crt")
    assert wrong("host:8443", "--ca", no_ca, "--insecure").startswith("--ca and --insecure exclude each other")
    assert wrong("host:8443", "--ca", no_ca).startswith("host:8443: give --token-file FILE")
    assert wrong("host:8443", "--ca", no_ca, "--token-file", tmp_path / "x").startswith(f"{tmp_path / 'x'}: cannot be")
    assert wrong("host:8443", "--ca", tmp_path / "x", "--token-file", token).startswith(f"{tmp_path / 'x'}: cannot be")
    assert wrong("host:8443", "--ca", no_ca, "--token-file", token).startswith(f"{no_ca}: not a PEM certificate")
    for text in ("", "two words", "a\r\nX: b"):
        token.write_text(text)
        assert wrong("host:8443", "--ca", no_ca, "--token-file", token).startswith(f"{token}: not a token")


async def _nothing_else(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@contextmanager
def serving(app: Any, keys: ServerKeys | None) -> Iterator[int]:
    """An app on a free port of this machine."""
    tls = {"ssl_certfile": keys.cert, "ssl_keyfile": keys.key} if keys else {}
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", **tls)  # type: ignore[arg-type]
    )
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.started
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ServerKeys:
    return make_demo_keys(tmp_path_factory.mktemp("keys") / "keys", ["north"], ["127.0.0.1"])


@pytest.fixture
def gate(live: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setenv(LIVE_TOKEN, TOKEN)
    monkeypatch.setenv(LIVE_FILE, str(live / "live.json"))
    (live / "watch.token").write_text(TOKEN)
    return Gate(_nothing_else)


def test_a_server_over_tls(
    live: Path, gate: Gate, keys: ServerKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--ca", keys.ca_cert, "--token-file", live / "watch.token")
    with serving(gate, keys) as port:
        target = f"127.0.0.1:{port}"
        done = call("watch", target, *options, "--once")
        assert (done.code, done.err) == (0, "")
        assert "north  training" in done.out
        assert json.loads(call("watch", target, *options, "--json").out) == json.loads((live / "live.json").read_text())
        # Over time, to the end.
        end = a_view(finished=True, average={"dice": 0.5})
        with monkeypatch.context() as patched:
            during_the_pause(patched, lambda: write_json(live / "live.json", end))
            done = call("watch", target, *options, "--every", "0.1")
        assert done.code == 0
        assert done.out.splitlines()[-1] == "Finished; average over sites (overlaps in %): dice 50.00"
        with monkeypatch.context() as patched:
            patched.setattr(page_server, "_LONGEST_WAIT", 0.0)
            assert call("watch", target, *options, "--web", "--no-open", "--every", "0.1").code == 0
        # Wrong token, wrong authority, wrong name, no encryption, nothing to see.
        (tmp_path / "token").write_text("another")
        said = wrong(target, "--ca", keys.ca_cert, "--token-file", tmp_path / "token")
        assert said == f"{target}: the token is not accepted; the coordinator has the right one in RUN/watch.token."
        other = make_server_keys(tmp_path / "other", ["127.0.0.1"]).keys
        said = wrong(target, "--ca", other.ca_cert, *options[2:])
        assert said.startswith(f"{target}: the server's certificate is not trusted (")
        assert said.endswith("give the ca.crt of this federation's coordinator as --ca.")
        said = call("watch", target, "--insecure", *options[2:])
        assert said.code == 2
        assert "is watched with --ca, not with --insecure" in said.err
        (live / "live.json").unlink()
        assert wrong(target, *options).startswith(f"{target}: the server is there, but no run has started yet")
    assert wrong(target, *options).startswith(f"{target}: connection refused; check host and port")


def test_a_certificate_for_another_name(live: Path, gate: Gate, tmp_path: Path, keys: ServerKeys) -> None:
    with serving(gate, keys) as port:
        context = ssl.create_default_context(cafile=keys.ca_cert)
        with pytest.raises(live_source.PolyclinicError, match="connect to an address that is in the certificate"):
            _as_host("127.0.0.2", port, context).read()


def _as_host(host: str, port: int, context: ssl.SSLContext) -> live_source.ServerSource:
    """A server that is found under an address that its certificate lacks."""

    class Elsewhere(ssl.SSLContext):
        def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
            return context.wrap_socket(*arguments, **{**named, "server_hostname": host})

    return live_source.ServerSource("127.0.0.1", port, TOKEN, Elsewhere(ssl.PROTOCOL_TLS_CLIENT))


def test_a_server_without_keys(live: Path, gate: Gate, keys: ServerKeys) -> None:
    token = ("--token-file", live / "watch.token")
    with serving(gate, None) as port:
        done = call("watch", f"127.0.0.1:{port}", "--insecure", *token, "--once")
        assert done.code == 0
        assert done.err == "warning: --insecure: the token and the view travel without encryption.\n"
        assert "north  training" in done.out
        said = wrong(f"127.0.0.1:{port}", "--ca", keys.ca_cert, *token)
        assert said.startswith(f"127.0.0.1:{port}: does not speak TLS")
    with serving(_nothing_else, keys) as port:
        said = wrong(f"127.0.0.1:{port}", "--ca", keys.ca_cert, *token)
        assert "answers, but not as a server of polyclinic" in said


def test_no_name_and_no_answer(tmp_path: Path, keys: ServerKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    options = ("--ca", keys.ca_cert, "--token-file", tmp_path / "token")

    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", unknown)
        assert wrong("fl.invalid:8443", *options).startswith("fl.invalid:8443: no machine of this name is known")
    monkeypatch.setattr(live_source, "_TIMEOUT", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        port = deaf.getsockname()[1]
        assert wrong(f"127.0.0.1:{port}", *options).startswith(f"127.0.0.1:{port}: no answer within 0.2 s")
