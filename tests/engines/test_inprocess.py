"""The engine of one process: order, laziness, statuses, failures, and files written beside the training."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteState, SiteStore
from support import assert_same, tiny_recipe, tiny_server


class Statuses(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str]] = []

    def on_status(self, round_number: int, site: str, status: str) -> None:
        self.seen.append((round_number, site, status))


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return tiny_server(tmp_path, tiny_recipe(training={"local_epochs": 1}), sizes={"north": 2, "south": 2})


def engine_of(server: Server, observer: Observer | None = None) -> InProcess:
    assert isinstance(server.engine, InProcess)
    return InProcess(server.workspace, server.engine.sites, observer)


def test_a_site_trains_when_its_update_is_asked_for_and_answers_keep_the_order(server: Server) -> None:
    statuses = Statuses()
    answers = engine_of(server, statuses).train(Broadcast(0, server.state.weights), ["south", "north"])
    assert statuses.seen == []
    assert next(answers).site == "south"
    assert statuses.seen == [(0, "south", "waiting"), (0, "north", "waiting"), (0, "south", "training")]
    assert [answer.site for answer in answers] == ["north"]
    assert statuses.seen[-1] == (0, "north", "training")


def held_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes of sites' memories wait for the event that comes back."""
    go, real = threading.Event(), SiteStore.save

    def save(self: SiteStore, state: SiteState) -> None:
        assert go.wait(60)
        real(self, state)

    monkeypatch.setattr(SiteStore, "save", save)
    return go


def test_the_state_of_the_last_site_is_written_beside_what_follows_and_is_on_disk_after_settle(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, files = engine_of(server), server.engine.sites["south"].store.folder  # type: ignore[attr-defined]
    go = held_back(monkeypatch)
    (update,) = engine.train(Broadcast(0, server.state.weights), ["south"])
    assert isinstance(update, Update)
    (score,) = engine.evaluate(Broadcast(0, server.state.weights), ["north"], "val", detailed=False)
    assert not isinstance(score, Failure)
    assert not list(files.glob("*.safetensors")), "training, aggregation and the other sites' scores do not wait"
    go.set()
    engine.settle()
    assert (files / "round-00000.safetensors").exists()


@pytest.mark.parametrize("act", ["evaluate", "model"])
def test_a_site_is_asked_for_its_kept_weights_only_when_they_are_on_disk(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn"), sizes={"north": 2, "south": 2})
    engine, broadcast, go = engine_of(server), Broadcast(0, server.state.weights), held_back(monkeypatch)
    (_,) = engine.train(broadcast, ["south"])
    threading.Timer(0.05, go.set).start()
    if act == "evaluate":
        list(engine.evaluate(broadcast, ["south"], "val", detailed=False))
    else:
        engine.model(broadcast, "south")
    assert engine.sites["south"].store.load(before=1).round == 0


def test_a_failure_of_a_site_is_an_answer_with_its_reason_and_traceback(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Site.train

    def failing(self: Site, *arguments: object) -> Update:
        if self.name == "north":
            raise ValueError("first line\nsecond line")
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Site, "train", failing)
    failure, update = engine_of(server).train(Broadcast(0, server.state.weights), ["north", "south"])
    assert isinstance(failure, Failure)
    assert (failure.site, failure.reason) == ("north", "ValueError: first line")
    assert "in failing" in failure.details
    assert isinstance(update, Update)


def test_a_problem_of_this_machine_is_not_the_fault_of_a_site(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise PolyclinicError("the disk is full")

    monkeypatch.setattr("polyclinic.federation.site_store.save_tensors", full)
    engine = engine_of(server)
    with pytest.raises(PolyclinicError, match="the disk is full"):
        list(engine.train(Broadcast(0, server.state.weights), server.sites))
    assert len(list(engine.train(Broadcast(0, server.state.weights), ["north"]))) == 1
    with pytest.raises(PolyclinicError, match="the disk is full"):
        engine.settle()


def test_scores_are_announced_and_a_failed_one_is_left_to_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses, broadcast = Statuses(), Broadcast(0, server.state.weights)
    (score,) = engine_of(server, statuses).evaluate(broadcast, ["north"], "val", detailed=False)
    assert not isinstance(score, Failure)
    assert score.images == 1
    assert [status for _, _, status in statuses.seen] == ["waiting", "scoring", "done"]
    monkeypatch.setattr(Site, "evaluate", lambda *_: 1 / 0)
    (failure,) = engine_of(server, statuses).evaluate(broadcast, ["north"], "val", detailed=False)
    assert isinstance(failure, Failure)
    assert [status for _, _, status in statuses.seen][3:] == ["waiting", "scoring"]


def test_the_model_of_a_site_is_what_it_received_and_what_it_keeps(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn", training={"rounds": 1}), sizes={"north": 2, "south": 2})
    server.fit()
    engine, broadcast = engine_of(server), Broadcast(0, server.state.weights)
    model = engine.model(broadcast, "north")
    kept = engine.sites["north"].store.load(before=1).personal
    assert kept
    assert_same(model, {**kept, **server.state.weights})
