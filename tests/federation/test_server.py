from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import safetensors.torch
import torch

from kill_moments import WRITERS, copied_at_every_moment, written_by
from polyclinic.components.aggregation.weighted_mean import WeightedMean
from polyclinic.components.rounds import ServerRound
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Update
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import build_workspace
from support import Keeper, assert_same, fail, final_tensors, spoiling, tiny_recipe, tiny_server, tiny_task


def test_a_failing_site_is_named_and_the_round_goes_on_without_it(tmp_path: Path) -> None:
    server = tiny_server(
        tmp_path / "fails", tiny_recipe(), observer=(keeper := Keeper()), engine=spoiling("west", fail)
    )
    server.round()
    assert keeper.refusals == [(0, "west", "failed: OSError: the scanner is on fire")]
    assert keeper.events[0]["refused"] == {"west": "failed: OSError: the scanner is on fire"}
    without = tiny_server(tmp_path / "without", tiny_recipe(), sizes={"north": 5, "south": 3})
    without.round()
    assert_same(server.state.weights, without.state.weights)


def test_a_bad_update_is_refused_with_its_reason(tmp_path: Path) -> None:
    """Every reason is in tests/exchange/test_checks.py; this is what the server does with one."""

    def spoil(update: Update) -> Update:
        update.weights["classifier.bias"] = torch.full((3,), torch.nan)
        return update

    server = tiny_server(tmp_path, tiny_recipe(), observer=(keeper := Keeper()), engine=spoiling("south", spoil))
    server.round()
    ((_, site, reason),) = keeper.refusals
    assert site == "south"
    assert "'classifier.bias' holds NaN" in reason
    assert keeper.events[0]["refused"] == {"south": reason}
    assert all(t.isfinite().all() for t in server.state.weights.values())


def test_below_the_quorum_the_run_stops_with_a_sentence_and_can_be_resumed(tmp_path: Path) -> None:
    recipe = tiny_recipe(training={"quorum": 3})
    with pytest.raises(PolyclinicError, match=r"Round 1 got 2 good updates of 3 sites, .*scanner.*--resume"):
        tiny_server(tmp_path / "run", recipe, engine=spoiling("west", fail)).fit()
    mended = tiny_server(tmp_path / "run", recipe)
    mended.fit()
    plain = tiny_server(tmp_path / "plain", recipe)
    plain.fit()
    assert_same(final_tensors(mended), final_tensors(plain))


@pytest.mark.parametrize(("participation", "count"), [(1.0, 3), (0.5, 2), (0.34, 2), (0.1, 1), (2, 2), (9, 3)])
def test_participation_is_a_share_or_a_number(participation: float, count: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(training={"participation": participation}))
    drawn = [server.choose(number) for number in range(20)]
    assert {len(sites) for sites in drawn} == {count}
    assert all(sites == sorted(sites) for sites in drawn)
    assert {site for sites in drawn for site in sites} == set(server.sites)
    assert drawn == [server.choose(number) for number in range(20)]


def test_partial_participation_resumes_to_the_same_result(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedbn", training={"participation": 2, "rounds": 4})
    whole = tiny_server(tmp_path / "whole", recipe)
    whole.fit()
    first = tiny_server(tmp_path / "halves", recipe)
    first.round()
    first.round()
    second = tiny_server(tmp_path / "halves", recipe)
    second.fit()
    assert_same(final_tensors(whole), final_tensors(second))


class Scripted(InProcess):
    """Validation scores from a list instead of images."""

    scores: Sequence[float] = ()

    def evaluate(self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool) -> Iterator[Evaluation]:
        assert split == "val"
        for offset, site in zip((0.1, -0.1, 0.0), sites, strict=True):
            yield Evaluation(site, broadcast.round, 1, self.scores[broadcast.round] + offset)


def scripted(folder: Path, scores: Sequence[float], **training: object) -> tuple[Server, Keeper]:
    engine = type("One", (Scripted,), {"scores": scores})
    keeper = Keeper()
    recipe = tiny_recipe("fedbn", training={"rounds": len(scores), **training})
    server = tiny_server(folder, recipe, observer=keeper, engine=engine)
    server.fit()
    return server, keeper


def test_the_best_model_is_chosen_by_the_mean_of_validation_scores(tmp_path: Path) -> None:
    server, keeper = scripted(tmp_path, [0.2, 0.6, 0.5, 0.6])
    assert [event["best_round"] for event in keeper.events] == [0, 1, 1, 1]
    assert server.state.best_dice == pytest.approx(0.6)
    best, _, number = server.checkpoint.load_model("best")
    last, _, newest = server.checkpoint.load_model("last")
    assert (number, newest) == (1, 3)
    assert not torch.equal(best["classifier.weight"], last["classifier.weight"])


def test_kept_weights_of_the_best_round_are_found_again(tmp_path: Path) -> None:
    """The best model of a FedBN site is global and kept weights of one and the same round."""
    server, _ = scripted(tmp_path / "long", [0.2, 0.9, 0.5, 0.6])
    short, _ = scripted(tmp_path / "short", [0.2, 0.9])
    for name, site in server.engine.sites.items():  # type: ignore[attr-defined]
        state = site.store.load(before=99)
        assert state.best_round == 1
        wanted = short.engine.sites[name].store.load(before=99).personal  # type: ignore[attr-defined]
        assert_same(state.personal_at(1), wanted)


def test_patience_stops_after_validations_without_a_better_one(tmp_path: Path) -> None:
    server, keeper = scripted(tmp_path, [0.5, 0.4, 0.6, 0.6, 0.1, 0.9], patience=2)
    assert len(keeper.events) == 5
    assert server.state.best_round == 2


def test_validation_happens_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    _, keeper = scripted(tmp_path, [0.1, 0.2, 0.3, 0.4, 0.5], validate_every=2)
    assert [bool(event["validation"]["sites"]) for event in keeper.events] == [False, True, False, True, True]


def test_an_event_tells_the_round(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedprox"), observer=(keeper := Keeper()))
    server.round()
    (event,) = keeper.events
    assert event["samples"] == {"north": 5, "south": 3, "west": 1}
    assert set(event["losses"]["north"]) == {"segmentation", "proximal"}
    assert set(event["validation"]["sites"]) == {"north", "south", "west"}
    size = sum(t.numel() * t.element_size() for t in server.state.weights.values())
    assert event["bytes_up"] == dict.fromkeys(server.sites, size)
    assert event["bytes_down"] == dict.fromkeys(server.sites, 2 * size)  # to train, and to validate
    assert event["seconds"]["training"] > 0


def test_an_event_counts_what_components_share(tmp_path: Path) -> None:
    """The class ``core`` is absent at the site ``south``: two classes and two streams make four prototypes."""
    server = tiny_server(tmp_path, tiny_recipe("fedbcs"), observer=(keeper := Keeper()))
    server.round()
    shared = keeper.events[0]["shared_up"]
    assert shared.keys() == {"cdpa"}
    assert {site: amount["prototypes"] for site, amount in shared["cdpa"].items()} == {
        "north": 6,
        "south": 4,
        "west": 2,
    }
    vectors, counts = 2 * 3 * 256 * 4, 2 * 3 * 8
    assert {amount["bytes"] for amount in shared["cdpa"].values()} == {vectors + counts}


def test_streaming_never_holds_two_updates(tmp_path: Path) -> None:
    """The next site starts only after the last update was used, so that memory does not grow with the sites."""
    import gc
    import weakref

    alive: list[weakref.ref[Update]] = []

    class Watching(InProcess):
        def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
            for answer in super().train(broadcast, sites):
                gc.collect()
                assert sum(reference() is not None for reference in alive) <= 1
                alive.append(weakref.ref(answer))  # type: ignore[arg-type]
                yield answer

    sizes = {f"site{i}": 1 for i in range(6)}
    tiny_server(tmp_path, tiny_recipe(), sizes=sizes, engine=Watching).round()
    assert len(alive) == 6


def test_bytes_down_count_training_for_the_chosen_and_validation_for_all(tmp_path: Path) -> None:
    recipe = tiny_recipe(training={"participation": 2, "validate_every": 2, "rounds": 3})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    size = sum(t.numel() * t.element_size() for t in server.state.weights.values())
    first, second, _ = keeper.events
    assert first["bytes_down"] == dict.fromkeys(first["sites"], size)
    assert second["bytes_down"] == {site: size * (1 + (site in second["sites"])) for site in server.sites}


def test_a_validation_that_failed_somewhere_is_compared_on_the_sites_that_both_have(tmp_path: Path) -> None:
    class Losing(Scripted):
        scores = (0.5, 0.9, 0.6)

        def evaluate(self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool):  # type: ignore[no-untyped-def, override]
            for answer in super().evaluate(broadcast, sites, split, detailed):
                lost = broadcast.round == 1 and answer.site == "south"
                yield Failure(answer.site, 1, "OSError: the cable") if lost else answer

    server = tiny_server(tmp_path, tiny_recipe(), engine=Losing)
    server.fit()
    assert server.state.best_round == 1
    assert set(server.state.best_scores) == {"north", "west"}


def test_every_training_of_a_workspace_starts_from_the_same_weights(tmp_path: Path) -> None:
    """A protocol's parts share a process: nothing that one of them learnt may reach the next."""
    workspace = build_workspace(tiny_recipe(), tiny_task())
    first = tiny_server(tmp_path / "first", tiny_recipe(), workspace=workspace)
    start = {n: t.clone() for n, t in first.state.weights.items()}
    first.fit()
    second = tiny_server(tmp_path / "second", tiny_recipe(), workspace=workspace)
    assert_same(second.state.weights, start)
    second.fit()
    assert_same(final_tensors(first), final_tensors(second))


# Kept weights, a component's memory at the sites and at the server, and a best model that is not always the last.
REMEMBERING = "fedbn+model_contrast+consistent_updates"


def newest_state(site: Path) -> int:
    return max((int(file.stem.partition("-")[2]) for file in site.glob("round-*")), default=-1)


@pytest.mark.parametrize("writers", WRITERS)
def test_a_run_that_is_killed_between_any_two_writes_goes_on_to_the_same_result(writers: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(REMEMBERING, training={"local_epochs": 1, "rounds": 5})
    workspace = build_workspace(recipe, tiny_task())

    def server_in(folder: Path) -> Server:
        return tiny_server(folder, recipe, sizes={"north": 2, "south": 1}, workspace=workspace)

    with (
        written_by(writers),
        copied_at_every_moment(tmp_path / "run", tmp_path) as moments,
    ):
        reference = server_in(tmp_path / "run")
        reference.fit()
    ahead = set()
    assert len(moments) > 25
    for moment in moments if writers == "slow checkpoints" else moments[::3]:
        resumed = server_in(moment)
        ahead |= {newest_state(site) - resumed.state.round for site in (moment / "sites").iterdir()}
        resumed.fit()
        assert_same(final_tensors(resumed), final_tensors(reference))
        for which in ("best", "last"):
            (weights, _, number), (wanted, _, wanted_number) = (
                server.checkpoint.load_model(which) for server in (resumed, reference)
            )
            assert number == wanted_number
            assert_same(weights, wanted)
    # A site is ahead by the round that the server works on, and by one more where the disk is slower than a site.
    assert max(ahead) == (1 if writers == "slow checkpoints" else 0)


class Started(Observer):
    def __init__(self) -> None:
        self.rounds = {number: Event() for number in range(9)}

    def on_status(self, round_number: int, site: str, status: str) -> None:
        if status == "training":
            self.rounds[round_number].set()


def test_a_checkpoint_is_written_while_sites_train_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, save = Started(), Checkpoint.save

    def slow(self: Checkpoint, state: ServerState, *rest: Any) -> None:
        assert state.round == 3 or started.rounds[state.round].wait(60)
        save(self, state, *rest)

    monkeypatch.setattr(Checkpoint, "save", slow)
    server = tiny_server(tmp_path, tiny_recipe(training={"local_epochs": 1}))
    server.engine.observer = started  # type: ignore[attr-defined]
    server.fit()
    written = server.checkpoint.load()
    assert written is not None
    assert written.round == 3, "the last one is on disk before anything is tested"


def test_the_checkpoint_before_is_on_disk_when_components_get_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may change in place what it holds; and no site can then be two rounds ahead of it."""
    found, real = [], WeightedMean.aggregate

    def aggregate(self: WeightedMean, server: ServerRound, updates: Iterator[Update]) -> Any:
        first = next(updates)
        state = Checkpoint(tmp_path / "server").load()
        found.append((server.round, 0 if state is None else state.round))
        return real(self, server, itertools.chain([first], updates))

    monkeypatch.setattr(WeightedMean, "aggregate", aggregate)
    with written_by("slow checkpoints"):
        tiny_server(tmp_path, tiny_recipe(training={"local_epochs": 1})).fit()
    assert found == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("number", [1, 3])
def test_a_disk_that_is_full_at_a_checkpoint_ends_the_run_with_its_sentence_and_it_can_be_resumed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("fedbn", training={"local_epochs": 1})
    reference = tiny_server(tmp_path / "reference", recipe)
    reference.fit()
    real = safetensors.torch.save_file

    def full(tensors: Any, path: Path, metadata: dict[str, str]) -> None:
        if ".server-next" in path.name and f'"round": {number},' in metadata["about"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(tensors, path, metadata)

    with monkeypatch.context() as patched:
        patched.setattr("safetensors.torch.save_file", full)
        sentence = r"server-next\.safetensors: cannot be written \(No space left on device\); free some space\."
        with pytest.raises(PolyclinicError, match=sentence):
            tiny_server(tmp_path / "run", recipe).fit()
    resumed = tiny_server(tmp_path / "run", recipe)
    assert resumed.state.round == number - 1
    resumed.fit()
    assert_same(final_tensors(resumed), final_tensors(reference))


def test_one_round_alone_ends_with_its_checkpoint_on_disk(tmp_path: Path) -> None:
    """What the server of a real federation does, whose sites keep fewer states."""
    with written_by("slow disks"):
        server = tiny_server(tmp_path, tiny_recipe(training={"local_epochs": 1}))
        for number in (1, 2):
            server.round()
            state = Checkpoint(tmp_path / "server").load()
            assert state is not None
            assert state.round == number
