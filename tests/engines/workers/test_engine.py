"""Worker processes: the same results as in one process, whatever happens to a worker."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.processes import is_alive, start_time
from polyclinic.engines.workers import Workers
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.training import LocalTraining
from support import Interrupted, Killer, assert_same, final_tensors, tiny_recipe, tiny_server

RECIPE = tiny_recipe("fedbn", engine={"workers": 2}, training={"rounds": 2, "local_epochs": 1})


class Messages(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.statuses: list[tuple[str, str]] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_status(self, round_number: int, site: str, status: str) -> None:
        self.statuses.append((site, status))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    server = tiny_server(tmp_path_factory.mktemp("reference"), RECIPE)
    server.fit()
    return final_tensors(server)


@pytest.fixture
def observer() -> Messages:
    return Messages()


@pytest.fixture
def server(tmp_path: Path, observer: Messages) -> Iterator[Server]:
    server = tiny_server(tmp_path, RECIPE, engine=lambda workspace, sites: Workers(workspace, sites, observer))
    yield server
    server.engine.close()


def engine_of(server: Server) -> Workers:
    assert isinstance(server.engine, Workers)
    return server.engine


def once(marker: Path) -> bool:
    """True for the first of all processes that asks."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_first(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, marker: Path, when: Callable[..., bool]) -> None:
    """Have the first worker that comes to a method under a condition die there, as by kill -9."""
    real = getattr(kind, name)

    def dying(self: object, *arguments: object) -> object:
        if when(self) and once(marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments)

    monkeypatch.setattr(kind, name, dying)


def test_answers_come_in_the_order_of_the_sites_and_statuses_are_told(server: Server, observer: Messages) -> None:
    answers = list(engine_of(server).train(Broadcast(0, server.state.weights), ["west", "north", "south"]))
    assert [answer.site for answer in answers] == ["west", "north", "south"]
    assert all(isinstance(answer, Update) for answer in answers)
    assert observer.statuses[:3] == [("west", "waiting"), ("north", "waiting"), ("south", "waiting")]
    started = [site for site, status in observer.statuses if status == "training"]
    assert sorted(started) == ["north", "south", "west"]
    assert set(started[:2]) == {"north", "south"}, "the largest sites go first"


def test_scores_equal_those_of_one_process(server: Server, tmp_path: Path) -> None:
    alone = tiny_server(tmp_path / "alone", RECIPE)
    for detailed, split in ((False, "val"), (True, "test")):
        broadcast = Broadcast(0, server.state.weights)
        here = list(alone.engine.evaluate(broadcast, alone.sites, split, detailed))
        assert list(server.engine.evaluate(broadcast, server.sites, split, detailed)) == here


def test_weights_of_a_round_lie_in_shared_memory_and_blocks_are_used_again(server: Server) -> None:
    engine = engine_of(server)
    for number in range(4):
        for answer in engine.train(Broadcast(number, server.state.weights), server.sites):
            assert isinstance(answer, Update)
        engine.settle()
    del answer
    assert len(engine.pool.blocks) <= 2 + len(server.sites), "the broadcast, an answer still held, one a site"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(LocalTraining, "run"), (SiteStore, "save")],
    ids=["while it trains", "before a state is on disk that was answered for"],
)
def test_a_killed_worker_is_replaced_and_nothing_is_lost(
    kind: type, name: str, server: Server, observer: Messages, reference: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    kill_first(monkeypatch, kind, name, tmp_path / "marker", lambda _: True)
    server.fit()
    assert_same(reference, final_tensors(server))
    assert (tmp_path / "marker").exists()
    assert any("a worker process ended at site" in text and "signal 9" in text for text in observer.messages)


def test_a_site_whose_worker_always_dies_ends_the_run_with_a_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Site.train
    monkeypatch.setattr(Site, "train", lambda self, *rest: os._exit(7) if self.name == "south" else real(self, *rest))
    with pytest.raises(PolyclinicError, match=r"at site 'south' ended 3 times \(it ended with code 7\)"):
        server.fit()
    assert engine_of(server).pool.workers == []


def test_a_failing_site_is_an_answer_and_a_full_disk_ends_the_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: LocalTraining) -> None:
        raise ValueError("no good") if self.site.site == "south" else PolyclinicError("disk full; free some space.")

    monkeypatch.setattr(LocalTraining, "run", failing)
    engine = engine_of(server)
    (answer,) = engine.train(Broadcast(0, server.state.weights), ["south"])
    assert isinstance(answer, Failure)
    assert answer.reason == "ValueError: no good"
    assert "Traceback" in answer.details
    with pytest.raises(PolyclinicError, match="disk full"):
        list(engine.train(Broadcast(0, server.state.weights), ["north", "south"]))


def test_an_interrupted_round_leaves_no_worker_and_goes_on_to_the_same_result(
    reference: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    killer = Killer(lambda event, number, site: (event, number, site) == ("site", 1, "north"))
    server = tiny_server(tmp_path, RECIPE, observer=killer, engine=Workers)
    server.round()
    pids = [worker.pid for worker in engine_of(server).pool.workers]
    assert len(pids) == 2
    with pytest.raises(Interrupted):
        server.round()
    assert not any(is_alive(pid, start_time(pid)) for pid in pids)
    resumed = tiny_server(tmp_path, RECIPE, engine=Workers)
    resumed.fit()
    assert_same(reference, final_tensors(resumed))
    resumed.engine.close()


def test_an_engine_that_is_dropped_takes_its_workers_along(server: Server) -> None:
    engine = Workers(server.workspace, engine_of(server).sites)
    next(iter(engine.train(Broadcast(0, server.state.weights), ["south"])))
    list(engine.evaluate(Broadcast(0, server.state.weights), ["south"], "val", False))
    pids = [worker.pid for worker in engine.pool.workers]
    assert pids
    del engine
    gc.collect()
    assert not any(is_alive(pid, start_time(pid)) for pid in pids)
