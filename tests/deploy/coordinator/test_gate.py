from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from polyclinic.deploy.coordinator.gate import LIMIT, LIVE_FILE, LIVE_PATH, LIVE_TOKEN, Gate, from_this_machine

HERE = ("127.0.0.1", 4000)
AWAY = ("192.0.2.7", 4000)
PUSH, ANNOUNCE = "/v1/fleet/push-object", "/v1/fleet/push-messages"


class App:
    """Reads the whole body, and remembers what reached it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.cut = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = scope["type"] == "http"
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.cut += 1
                return
            body += event.get("body", b"")
            more = event.get("more_body", False)
        self.calls.append((scope.get("path", scope["type"]), body))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"the app"})


def ask(
    gate: Gate, path: str, client: Any = AWAY, headers: dict[str, str] | None = None, body: Iterable[bytes] = (b"",),
    kind: str = "http",
) -> tuple[int, bytes]:  # fmt: skip
    pieces = list(body)
    events = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1}
        for number, piece in enumerate(pieces)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return events.pop(0)

    async def send(event: Any) -> None:
        sent.append(event)

    given = [(key.lower().encode(), value.encode()) for key, value in (headers or {}).items()]
    scope = {"type": kind, "path": path, "client": client, "headers": given}
    asyncio.run(gate(scope, receive, send))
    if not sent:
        return 0, b""
    return sent[0].get("status", 0), sent[-1].get("body", b"") or sent[0]["type"].encode()


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def gate(app: App, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setenv(LIMIT, "100")
    return Gate(app)


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("192.0.2.7", False), ("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("::ffff:192.0.2.7", False),
        ("2001:db8::1", False), ("fe80::1%eth0", False), ("localhost", False), ("127.0.0.1.evil.org", False),
        ("", False),
    ],
)  # fmt: skip
def test_which_addresses_are_this_machine(address: str, here: bool, gate: Gate, app: App) -> None:
    assert from_this_machine({"client": (address, 1)}) == here
    status, _ = ask(gate, "/v1/control/start-run", (address, 1))
    assert status == (200 if here else 403)
    assert bool(app.calls) == here


@pytest.mark.parametrize("client", [None, ()])
def test_a_caller_without_an_address_is_not_from_here(client: Any, gate: Gate, app: App) -> None:
    assert ask(gate, "/v1/control/start-run", client)[0] == 403
    assert not app.calls


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/control/start-run", "/v1/serverappio/pull", "/v1/fleet", "/v1/fleetx/pull", "/V1/FLEET/pull",
     "//v1/fleet/pull", "/docs", "/health", "/v1/polyclinic/live/", ""],
)  # fmt: skip
def test_from_elsewhere_only_the_sites_interface_is_reachable(path: str, gate: Gate, app: App) -> None:
    status, body = ask(gate, path, AWAY)
    assert (status, body) == (403, b"Only sites are served from other machines.")
    assert not app.calls
    assert ask(gate, path, HERE)[0] == 200


@pytest.mark.parametrize("client", [AWAY, HERE, ("2001:db8::1", 9)])
def test_sites_reach_their_interface_from_everywhere(client: Any, gate: Gate, app: App) -> None:
    assert ask(gate, "/v1/fleet/pull-messages", client, body=[b"a", b"b"]) == (200, b"the app")
    assert app.calls == [("/v1/fleet/pull-messages", b"ab")]


def test_a_header_cannot_make_a_caller_local(gate: Gate) -> None:
    headers = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "Host": "localhost"}
    assert ask(gate, "/v1/control/start-run", AWAY, headers)[0] == 403


def test_the_server_s_own_start_passes_and_websockets_from_elsewhere_do_not(gate: Gate, app: App) -> None:
    ask(gate, "", None, kind="lifespan")
    assert app.calls == [("", b"")]
    assert ask(gate, "/v1/control/x", AWAY, kind="websocket")[1] == b"websocket.close"
    assert len(app.calls) == 1
    ask(gate, "/v1/control/x", HERE, kind="websocket")
    assert len(app.calls) == 2


def test_live_needs_the_token(gate: Gate, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "live.json").write_text('{"round": 3}')
    monkeypatch.setenv(LIVE_FILE, str(tmp_path / "live.json"))
    monkeypatch.setenv(LIVE_TOKEN, "secret")
    for client in (AWAY, HERE):
        for headers in ({}, {"Authorization": ""}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "},
                        {"Authorization": "Bearer secret2"}, {"Authorization": "Bearer sécret"}):  # fmt: skip
            assert ask(gate, LIVE_PATH, client, headers)[0] == 401
        assert ask(gate, LIVE_PATH, client, {"Authorization": "Bearer secret"}) == (200, b'{"round": 3}')
    (tmp_path / "live.json").unlink()
    assert ask(gate, LIVE_PATH, AWAY, {"Authorization": "Bearer secret"})[0] == 404
    assert not app.calls


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_nobody_sees_the_run(
    token: str | None, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "live.json").write_text("{}")
    monkeypatch.setenv(LIVE_FILE, str(tmp_path / "live.json"))
    monkeypatch.delenv(LIVE_TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(LIVE_TOKEN, token)
    for headers in ({}, {"Authorization": ""}, {"Authorization": "Bearer "}):
        assert ask(gate, LIVE_PATH, HERE, headers)[0] == 401


def key(name: str) -> dict[str, str]:
    return {"flwr-public-key": name}


def test_an_answer_has_a_limit_that_is_counted_over_its_objects(gate: Gate, app: App) -> None:
    assert ask(gate, ANNOUNCE, headers=key("north"))[0] == 200
    assert ask(gate, PUSH, headers=key("north"), body=[b"x" * 60])[0] == 200
    assert ask(gate, PUSH, headers=key("north"), body=[b"x" * 40])[0] == 200
    assert ask(gate, PUSH, headers=key("north"), body=[b"x"]) == (0, b"")
    assert app.cut == 1
    assert ask(gate, PUSH, headers=key("north"), body=[b"x"])[0] == 413
    assert ask(gate, PUSH, headers=key("south"), body=[b"x" * 60])[0] == 200  # another site has a count of its own
    assert ask(gate, ANNOUNCE, headers=key("north"))[0] == 200
    assert ask(gate, PUSH, headers=key("north"), body=[b"x" * 100])[0] == 200
    assert [len(body) for path, body in app.calls if path == PUSH] == [60, 40, 60, 100]


def test_a_long_upload_is_cut_before_all_of_it_is_read(gate: Gate, app: App) -> None:
    ask(gate, ANNOUNCE, headers=key("north"))
    read = []

    def pieces() -> Iterable[bytes]:
        for number in range(50):
            read.append(number)
            yield b"x" * 30

    ask(gate, PUSH, headers=key("north"), body=pieces())
    assert app.cut == 1
    assert app.calls[1:] == []
    assert gate.received[b"north"] == 120  # the piece that was too much, and none after it


def test_without_a_key_uploads_count_by_caller_and_other_calls_not_at_all(gate: Gate) -> None:
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 200
    assert ask(gate, PUSH, ("192.0.2.8", 1), body=[b"x" * 90])[0] == 200
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 0
    assert ask(gate, "/v1/fleet/pull-messages", ("192.0.2.7", 1), body=[b"x" * 900])[0] == 200
    assert ask(gate, ANNOUNCE, ("192.0.2.7", 1))[0] == 200
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 200


def test_the_gate_is_outermost_in_the_flower_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink import extensions

    from polyclinic.deploy.coordinator import gate as superlink

    program = import_module("flwr.superlink.cli.flower_superlink")
    started: list[bool] = []
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(program, "flower_superlink", lambda: started.append(True))
    superlink.main()
    assert started == [True]
