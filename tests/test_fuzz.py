"""Hostile bytes at every boundary: they are refused in a sentence, and nothing else ever happens.

The suite tries some hundred inputs; ``make fuzz`` tries many more (``POLYCLINIC_FUZZ`` examples a test) and writes down
how many. What a test allows is written in it: a reading function gives a result or raises ``PolyclinicError``; a site
and a gate always answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flower_support import make_handler, png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.exchange.audit import AuditLog, read_audit
from polyclinic.exchange.checks import scores_problem, update_problem
from polyclinic.exchange.messages import Evaluation, Update, from_tensors
from polyclinic.exchange.receipts import take_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.federation.site_policy import Policy, load_policy
from polyclinic.recipe.files import make_recipe, parse_recipe, recipe_text
from polyclinic.recipe.fingerprint import read_asked

EXAMPLES = int(os.environ.get("POLYCLINIC_FUZZ", "0"))
fuzz = settings(
    max_examples=EXAMPLES or 60, deadline=None, derandomize=not EXAMPLES, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
ABOUT_KEYS = [
    "kind", "site", "round", "samples", "steps", "losses", "seconds", "images", "dice", "rows", "stats", "note",
    "reason", "act", "run", "part", "recipe", "split", "detailed", "broadcast", "task", "receipt", "best_round",
    "refusal",
]  # fmt: skip
abouts = st.dictionaries(st.sampled_from(ABOUT_KEYS), plain | st.sampled_from(["Update", "train", "describe"]))


def mutated(draw: Callable[[Any], Any], data: bytes) -> bytes:
    """A few bytes of ``data`` changed, cut, doubled or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, max(0, len(changed) - 1)))
        match draw(st.sampled_from(["set", "cut", "insert", "double", "end"])):
            case "set" if changed:
                changed[place] = draw(st.integers(0, 255))
            case "cut":
                del changed[place : place + draw(st.integers(1, 40))]
            case "insert":
                changed[place:place] = draw(st.binary(max_size=40))
            case "double":
                changed[place:place] = changed[place : place + 60]
            case "end":
                del changed[place:]
    return bytes(changed)


@st.composite
def safetensors_files(draw: Callable[[Any], Any]) -> bytes:
    """Mutated files, and files whose header is any JSON with any claims about sizes."""
    if draw(st.booleans()):
        import torch

        return mutated(draw, encode({"weights/a": torch.ones(3, 2), "weights/b": torch.zeros(2).long()})["weights"])
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "I64", "BF16", "F8_E4M3", "X", ""]) | plain,
            "shape": st.lists(st.integers(-(2**70), 2**70), max_size=5) | plain,
            "data_offsets": st.lists(st.integers(-10, 2**66), max_size=3) | plain,
        }
    )
    header = json.dumps(draw(st.dictionaries(st.text(max_size=8), entry | plain, max_size=4))).encode()
    size = draw(st.sampled_from([len(header), len(header) + 1, 0, 2**63, 2**64 - 1, 10**8]))
    return struct.pack("<Q", size) + header + draw(st.binary(max_size=64))


@fuzz
@given(st.dictionaries(st.text(max_size=12), st.binary(max_size=80) | safetensors_files(), max_size=3))
def test_tensors_of_a_message(blobs: dict[str, bytes]) -> None:
    try:
        tensors = decode(blobs)
    except PolyclinicError:
        return
    assert sum(tensor.numel() for tensor in tensors.values()) <= sum(map(len, blobs.values()))


@fuzz
@given(data=st.binary(max_size=100) | safetensors_files())
def test_tensors_of_a_file(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    file.write_bytes(data)
    try:
        load_tensors(file)
    except PolyclinicError as error:
        _names(file, error)


@fuzz
@given(abouts | plain)
def test_the_plain_data_of_an_answer(about: Any) -> None:
    """What passes the reading is judged by the checks, which never raise."""
    try:
        if isinstance(about, dict):
            take_receipt(about)
        message = from_tensors({}, about)
    except PolyclinicError:
        return
    if isinstance(message, Update):
        problem = update_problem(message, {}, {}, 0)
        assert problem is None or problem.isprintable()
    elif isinstance(message, Evaluation):
        problem = scores_problem(message)
        assert problem is None or problem


@pytest.fixture(scope="module")
def handler(tiny_federation: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_handler(tmp_path_factory.mktemp("fuzz") / "home", tiny_federation)


@settings(fuzz, max_examples=EXAMPLES // 10 or 20)
@given(data=st.data())
def test_a_site_answers_any_request(data: Any, handler: Any, tiny_federation: Path) -> None:
    """A valid request in which keys are changed, taken out and put in; its answer can be read, and its log goes on."""
    _, about = Request("describe", "run-1", "all", recipe_text(png_recipe(tiny_federation))).to_tensors()
    changed: Any = {**about, **data.draw(abouts)}
    for key in data.draw(st.lists(st.sampled_from(sorted(about)), max_size=2)):
        changed.pop(key, None)
    if data.draw(st.booleans()) and isinstance(changed.get("recipe"), str):
        changed["recipe"] = mutated(data.draw, changed["recipe"].encode()).decode("utf-8", "replace")
    blobs, answer = handler.serve(data.draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=40))), changed)
    take_receipt(answer)
    assert type(from_tensors(decode(blobs), answer)).__name__ in ("Failure", "Description", "Evaluation")


@fuzz
@given(data=st.data())
def test_a_policy_file(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed-policy.toml"
    if data.draw(st.booleans()):
        file.write_bytes(data.draw(st.binary(max_size=200)))
    else:
        table = data.draw(st.dictionaries(st.sampled_from(sorted(Policy.model_fields)), plain, max_size=4))
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()).encode()
        file.write_bytes(mutated(data.draw, lines) if data.draw(st.booleans()) else lines)
    try:
        assert isinstance(load_policy(file), Policy)
    except PolyclinicError as error:
        _names(file, error)


@fuzz
@given(data=st.data())
def test_a_recipe_of_the_server(data: Any, tiny_federation: Path) -> None:
    text = mutated(data.draw, recipe_text(png_recipe(tiny_federation)).encode()).decode("utf-8", "replace")
    asked = read_asked(text)
    try:
        make_recipe(parse_recipe(text, "the recipe"), "the recipe")
    except PolyclinicError:
        return
    assert len(asked.sha256) == 64


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    for number in range(5):
        AuditLog(file).add("run", "all", {}, {"round": number, "kind": "Failure", "reason": "none"})
    return file.read_bytes()


@fuzz
@given(data=st.data())
def test_a_changed_audit_log_is_never_taken_for_whole(
    data: Any, audit_log: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Only its last line is not held by a line after it; that one the head of the log holds."""
    file = tmp_path_factory.getbasetemp() / "fuzzed-audit.jsonl"
    changed = mutated(data.draw, audit_log)
    file.write_bytes(changed)
    try:
        entries = list(read_audit(file))
    except PolyclinicError as error:
        _names(file, error)
    else:
        before = changed.split(b"\n")[: len(entries)][:-1]
        assert before == audit_log.split(b"\n")[: len(before)]


def _names(file: Path, error: PolyclinicError) -> None:
    assert str(file) in str(error)


@fuzz
@given(
    path=st.sampled_from(["/v1/fleet/push-object", "/v1/fleet/pull-messages", "/v1/control/x", "/v1/polyclinic/live"])
    | st.text(max_size=30),
    headers=st.lists(
        st.tuples(
            st.sampled_from([
                b"flwr-public-key", b"flwr-signature", b"flwr-timestamp", b"content-length", b"authorization",
                b"transfer-encoding",
            ]) | st.binary(max_size=12),
            st.binary(max_size=60) | st.sampled_from([b"-1", b"1e9", b"99999999999999999999", b"0x10"]),
        ),
        max_size=6,
    ),
    body=st.lists(st.binary(max_size=200), max_size=4),
    client=st.none() | st.tuples(st.sampled_from(["127.0.0.1", "::1", "192.0.2.1", "", "x"]), st.integers(0, 70000)),
)  # fmt: skip
def test_the_gate_answers_any_request_and_lets_no_stranger_through(
    path: str, headers: Any, body: Any, client: Any, gate: Any
) -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    gate.app = app
    pieces = iter([*({"type": "http.request", "body": piece, "more_body": True} for piece in body)])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(pieces, {"type": "http.request", "body": b"", "more_body": False})

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http", "path": path, "headers": headers, "client": client, "method": "POST",
        "server": ("127.0.0.1", 8443),
    }  # fmt: skip
    asyncio.run(gate(scope, receive, send))
    assert sent[0]["type"] == "http.response.start"
    assert sent[0]["status"] in (200, 400, 401, 403, 404, 411, 413, 429, 503)
    if reached:
        assert not path.startswith("/v1/fleet/")
        assert client is not None
        assert client[0] in ("127.0.0.1", "::1")


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from polyclinic.deploy.coordinator.gate import LIVE_TOKEN, SITES_FILE, Gate
    from polyclinic.deploy.coordinator.gate_authentication import write_sites

    write_sites(tmp_path / "sites.json", {})
    monkeypatch.setenv(SITES_FILE, str(tmp_path / "sites.json"))
    monkeypatch.setenv(LIVE_TOKEN, "secret")
    return Gate(lambda *_: None)  # type: ignore[arg-type, return-value]


@fuzz
@given(data=st.data())
def test_a_site_lives_through_any_answer_of_a_server(data: Any) -> None:
    """Random bytes where protobuf is expected, for each call of the fleet protocol."""
    from fleet_server import FleetServer, Run
    from polyclinic.engines.flower.fleet_client import ConnectionLostError, FleetClient, RejectedError, RunEndedError
    from polyclinic.engines.flower.records import to_records

    server = FleetServer({1: Run(bundle=b"x")})
    server.send(1, to_records({"weights": b"abc"}, {"act": "train"}))
    paths = ["activate-node", "pull-messages", "get-run", "get-fab", "pull-object", "confirm-message-received"]
    path = data.draw(st.sampled_from(paths))
    status = data.draw(st.sampled_from([200, 200, 200, 401, 403, 409, 500, 503]))
    server.hooks[path] = lambda body: _spoiled(server, path, body, data, status)

    class Direct(FleetClient):
        """Asks the server without a network."""

    client = Direct("127.0.0.1:9", None, None)
    client._http._send = lambda context, **_: _answer(server, context)  # type: ignore[method-assign]
    expected = (ConnectionLostError, RejectedError, RunEndedError, PolyclinicError, ValueError, KeyError, TypeError)
    try:
        client.activate()
        incoming = client.next_message()
        client.run_info(1)
        if incoming is not None:
            client.fetch(incoming, 10**6)
    except expected:  # what the message loop turns into a new connection or an answer that says why
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} from {path}") from error


def _spoiled(server: Any, path: str, body: bytes, data: Any, status: int) -> Any:
    hook = server.hooks.pop(path)
    good = server.answer(path, body)[2]
    server.hooks[path] = hook
    return status, {}, mutated(data.draw, good) if data.draw(st.booleans()) else data.draw(st.binary(max_size=60))


def _answer(server: Any, context: Any) -> Any:
    import httpx

    status, headers, content = server.answer(
        context.request.url.path.removeprefix("/v1/fleet/"), context.request.content
    )
    return httpx.Response(status, headers=headers, content=content, request=context.request)
