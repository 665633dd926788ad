"""The client of a site's worker: retries, errors in a sentence, and the simulation without a worker."""

from __future__ import annotations

import time
from multiprocessing.connection import Listener
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from flower_support import OPEN, png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site import worker_client
from polyclinic.deploy.site.worker_client import HOME, forward_request
from polyclinic.deploy.site.worker_socket import WorkerAddress, receive, send
from polyclinic.exchange.messages import Description, Failure, from_tensors
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.recipe.files import recipe_text


def describe(federation: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    tensors, about = Request("describe", "run", "all", recipe_text(png_recipe(federation))).to_tensors()
    return encode(tensors), about


def test_a_site_without_a_worker_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(worker_client, "_CONNECT_TIMEOUT", 0.1)
    context: Any = SimpleNamespace(node_config={}, run_config={})
    with pytest.raises(PolyclinicError, match="the site's worker does not answer"):
        forward_request({}, {}, context)


@pytest.mark.parametrize(("hears", "ends"), [(True, 2), (False, 2), (True, 1)])
def test_a_worker_that_ends_at_work_is_called_again_and_then_gets_a_sentence(
    hears: bool, ends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(worker_client, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    context: Any = SimpleNamespace(node_config={}, run_config={})

    def end(listener: Listener) -> None:
        for _ in range(ends):
            with listener.accept() as connection:
                if hears:
                    connection.recv_bytes()
        with listener.accept() as connection:
            send(connection, *receive(connection))

    with WorkerAddress(tmp_path).listen() as listener:
        Thread(target=end, args=(listener,), daemon=True).start()
        if ends == 1:
            assert forward_request({"weights": b"x"}, {"a": 1}, context) == ({"weights": b"x"}, {"a": 1})
            return
        with pytest.raises(PolyclinicError, match="worker ended 2 times while it was at work"):
            forward_request({}, {}, context)


@pytest.mark.parametrize("config", [{}, {"site": "north"}, {"data": "x"}, {"site": 5, "data": "x"}])
def test_a_supernode_of_its_own_must_say_which_site_it_is(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOME, raising=False)
    context: Any = SimpleNamespace(node_config=config, run_config={})
    with pytest.raises(PolyclinicError, match="--node-config has no"):
        forward_request({}, {}, context)


def test_in_a_simulation_the_site_is_in_this_process(tiny_federation: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "policy.toml").write_text(OPEN)
    config = {"sites": '["north", "south"]', "data": str(tiny_federation), "homes": str(sites), "device": "cpu"}
    context: Any = SimpleNamespace(node_config={"partition-id": 1, "num-partitions": 2}, run_config=config)
    answered, plain = forward_request(*describe(tiny_federation), context)
    answer = from_tensors(decode(answered), plain)
    assert isinstance(answer, Description)
    assert (answer.site, sum(answer.images.values())) == ("south", 4)
    assert (sites / "south" / "audit.jsonl").exists()
    answered, plain = forward_request({}, {}, context)
    assert isinstance(from_tensors(decode(answered), plain), Failure)
