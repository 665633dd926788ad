from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from polyclinic.deploy.coordinator import gate as module
from polyclinic.deploy.coordinator.gate import (
    LIMIT,
    LIVE_FILE,
    LIVE_PATH,
    LIVE_TOKEN,
    NOTICES_FILE,
    SITES_FILE,
    Gate,
    from_this_machine,
)
from polyclinic.deploy.coordinator.gate_authentication import write_sites
from polyclinic.deploy.coordinator.gate_limits import LOCAL_BODY, SMALL_BODY
from polyclinic.deploy.keys.key_folders import make_site_key
from site_signatures import signed_headers

HERE = ("127.0.0.1", 4000)
AWAY = ("192.0.2.7", 4000)
PUSH, ANNOUNCE = "/v1/fleet/push-object", "/v1/fleet/push-messages"


class App:
    """Reads the whole body, and remembers what reached it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.cut = 0
        self.pieces = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = scope["type"] == "http"
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.cut += 1
                return
            self.pieces += 1
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
    scope = {"type": kind, "path": path, "client": client, "server": ("127.0.0.1", 8443), "headers": given}
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
    monkeypatch.setattr(module, "connection_owner", lambda *_: os.geteuid())
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
    assert ask(gate, PUSH, headers=key("north"), body=[b"x"])[0] == 413
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
    assert gate.received["north"] == 120  # the piece that was too much, and none after it


def test_without_a_key_uploads_count_by_caller_and_other_calls_not_at_all(gate: Gate) -> None:
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 200
    assert ask(gate, PUSH, ("192.0.2.8", 1), body=[b"x" * 90])[0] == 200
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 413
    assert ask(gate, "/v1/fleet/pull-messages", ("192.0.2.7", 1), body=[b"x" * 900])[0] == 200
    assert ask(gate, ANNOUNCE, ("192.0.2.7", 1))[0] == 200
    assert ask(gate, PUSH, ("192.0.2.7", 1), body=[b"x" * 90])[0] == 200


@pytest.fixture
def keyed(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate that knows ``north``; ``stranger`` has a key too."""
    public = {name: make_site_key(tmp_path / name, name)[1] for name in ("north", "stranger")}
    write_sites(tmp_path / "sites.json", {"north": public["north"]})
    monkeypatch.setenv(SITES_FILE, str(tmp_path / "sites.json"))
    monkeypatch.setenv(NOTICES_FILE, str(tmp_path / "gate.jsonl"))
    return Gate(app)


def headers_of(folder: Path, name: str, **changes: Any) -> dict[str, str]:
    return signed_headers(folder / name / f"{name}.key", **changes)


def test_a_stranger_s_body_never_reaches_the_app(keyed: Gate, app: App, tmp_path: Path) -> None:
    north, stranger = (headers_of(tmp_path, name) for name in ("north", "stranger"))
    for headers in (
        {},
        stranger,
        {**north, "flwr-signature": stranger["flwr-signature"]},
        {**north, "flwr-signature": ""},
        {**north, "flwr-timestamp": north["flwr-timestamp"] + " "},
        {**north, "flwr-public-key": "not base64"},
        headers_of(tmp_path, "north", ahead=7.3),
    ):
        for path in (ANNOUNCE, PUSH, "/v1/fleet/activate-node", "/v1/fleet/anything"):
            assert ask(keyed, path, headers=headers, body=[b"x" * 1000] * 100)[0] in (401, 429)
    assert not app.calls
    assert not app.pieces
    assert ask(keyed, PUSH, headers=north, body=[b"mine"])[0] == 200
    assert app.calls == [(PUSH, b"mine")]


def test_a_header_that_is_there_twice_is_not_believed(keyed: Gate, app: App, tmp_path: Path) -> None:
    """Flower reads the first of two headers, others the last."""
    given = [(key.encode(), value.encode()) for key, value in headers_of(tmp_path, "north").items()]
    other = b64encode(b"another key")

    async def run() -> None:
        async def nothing(*_: Any) -> Any:
            return {"type": "http.request"}

        scope = {"type": "http", "path": PUSH, "client": AWAY, "headers": [(b"flwr-public-key", other), *given]}
        await keyed(scope, nothing, nothing)

    asyncio.run(run())
    assert not app.calls


def test_until_the_sites_are_registered_everybody_hears_that_the_server_starts(
    keyed: Gate, app: App, tmp_path: Path
) -> None:
    (tmp_path / "sites.json").rename(tmp_path / "later.json")
    assert ask(keyed, PUSH, headers=headers_of(tmp_path, "north"))[0] == 503
    (tmp_path / "later.json").rename(tmp_path / "sites.json")
    assert ask(keyed, PUSH, headers=headers_of(tmp_path, "north"))[0] == 200
    (tmp_path / "sites.json").write_text("damaged")
    assert ask(keyed, PUSH, headers=headers_of(tmp_path, "north"))[0] == 503
    assert len(app.calls) == 1


def test_failures_are_slowed_by_address_and_sites_are_not(keyed: Gate, tmp_path: Path) -> None:
    keyed.failures.clock = lambda: 0.0
    stranger = headers_of(tmp_path, "stranger")
    assert [ask(keyed, PUSH, headers=stranger)[0] for _ in range(30)] == [401] * 20 + [429] * 10
    assert ask(keyed, PUSH, headers=headers_of(tmp_path, "north"))[0] == 200
    assert ask(keyed, PUSH, headers=headers_of(tmp_path, "north", ahead=60))[0] == 401  # it must hear why
    assert ask(keyed, PUSH, ("192.0.2.8", 1), headers_of(tmp_path, "stranger"))[0] == 401


def test_flower_s_own_supernode_understands_a_refusal(keyed: Gate, tmp_path: Path) -> None:
    from flwr.supercore.error import ApiErrorCode, FlowerError

    _, text = ask(keyed, PUSH, headers=headers_of(tmp_path, "stranger"))
    error = FlowerError.from_json(text.decode())
    assert error is not None
    assert error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
    assert error.message == "Invalid SuperNode authentication: unknown-key."


def test_the_coordinator_is_told_in_few_words(keyed: Gate, tmp_path: Path) -> None:
    for _ in range(5):
        ask(keyed, PUSH, headers=headers_of(tmp_path, "stranger"))
        ask(keyed, PUSH, headers=headers_of(tmp_path, "north", ahead=7.3))
    stranger, clock = (tmp_path / "gate.jsonl").read_text().splitlines()
    assert stranger == '["on_message", "a machine at 192.0.2.7 with a key that no site here has was turned away"]'
    assert "north was turned away: its clock is 7." in clock
    assert "s ahead of this machine's; set both by NTP" in clock


@pytest.mark.parametrize("declared", [True, False])
def test_every_body_has_a_limit(gate: Gate, app: App, declared: bool) -> None:
    for path, largest in (
        ("/v1/fleet/activate-node", SMALL_BODY),
        ("/v1/fleet/pull-messages", SMALL_BODY),
        (ANNOUNCE, 2**20),
    ):
        for size, status in ((largest, 200), (largest + 1, 413)):
            app.pieces = 0
            headers = {"content-length": str(size)} if declared else {"transfer-encoding": "chunked"}
            pieces = [b"x" * (2**15)] * (size // 2**15) + [b"x" * (size % 2**15)]
            assert ask(gate, path, headers=headers, body=pieces)[0] == status
            assert not (declared and status == 413 and app.pieces)
    assert ask(gate, "/v1/control/start-run", HERE, {"content-length": str(LOCAL_BODY + 1)})[0] == 413


def test_a_refused_upload_closes_its_connection_and_a_small_one_does_not(keyed: Gate) -> None:
    for headers, closes in (
        ({"content-length": str(10**9)}, True),
        ({"transfer-encoding": "chunked"}, True),
        ({"content-length": "nonsense"}, True),
        ({"content-length": "300"}, False),
        ({}, False),
    ):
        answers: list[dict[str, Any]] = []

        async def send(event: Any, kept: list[dict[str, Any]] = answers) -> None:
            kept.append(event)

        async def never() -> Any:
            raise AssertionError("the body was read")

        given = [(key.encode(), value.encode()) for key, value in headers.items()]
        asyncio.run(keyed({"type": "http", "path": PUSH, "client": AWAY, "headers": given}, never, send))
        assert answers[0]["status"] in (401, 429)
        assert ((b"connection", b"close") in answers[0]["headers"]) == closes


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_users_of_this_machine_are_refused(
    kind: str, gate: Gate, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, allowed in ((os.geteuid(), True), (0, True), (54321, False), (None, False)):
        monkeypatch.setattr(module, "connection_owner", lambda *_, uid=owner: uid)
        app.calls.clear()
        ask(gate, "/v1/control/start-run", HERE, kind=kind)
        assert bool(app.calls) == allowed
    monkeypatch.setattr(module, "owners_are_known", lambda: False)
    ask(gate, "/v1/control/start-run", HERE, kind=kind)
    assert app.calls


def test_the_owner_is_looked_up_once_for_a_connection(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(module, "connection_owner", lambda *ends: looks.append(ends) or os.geteuid())
    connections: list[dict[str, Any]] = [{}, {}]
    for connection in (connections[0], connections[0], connections[1]):
        state = {"polyclinic_connection": connection}
        assert gate._is_own_user({"type": "http", "client": HERE, "server": HERE, "state": state})
    assert len(looks) == 2


def test_guessing_the_token_is_slowed(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIVE_TOKEN, "secret")
    gate.failures.clock = lambda: 0.0
    statuses = [ask(gate, LIVE_PATH, AWAY, {"Authorization": f"Bearer {n}"})[0] for n in range(30)]
    assert statuses == [401] * 20 + [429] * 10
    assert ask(gate, LIVE_PATH, AWAY, {"Authorization": "Bearer secret"})[0] == 404


def test_the_gate_is_outermost_in_the_flower_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn
    from flwr.superlink import extensions

    from polyclinic.deploy.coordinator.bounded_connection import BoundedConnection

    program = import_module("flwr.superlink.cli.flower_superlink")
    started: list[Any] = []
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    monkeypatch.setattr(program, "flower_superlink", lambda: program.uvicorn.run("app"))
    monkeypatch.setattr(uvicorn, "run", lambda *given, **options: started.append((given, options)))
    monkeypatch.setenv(SITES_FILE, "sites.json")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    module.main()
    assert started == [(("app",), {"http": BoundedConnection, "proxy_headers": False})]
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in os.environ


def test_without_keys_it_serves_only_if_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SITES_FILE, raising=False)
    monkeypatch.setattr("sys.argv", ["gate", "--port", "1"])
    with pytest.raises(SystemExit, match="no site could be known"):
        module.main()


def test_the_server_s_own_address_is_this_machine() -> None:
    """``--host 10.0.0.5``: its own programs then call from that address; no other machine can."""
    assert from_this_machine({"client": ("10.0.0.5", 4000), "server": ("10.0.0.5", 8443)})
    assert not from_this_machine({"client": ("10.0.0.6", 4000), "server": ("10.0.0.5", 8443)})
    assert not from_this_machine({"client": None, "server": None})
