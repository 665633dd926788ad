"""Poisoned models: refused where they are made, taken back where they only show at the sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from kill_moments import copied_at_every_moment, written_by
from polyclinic.components.aggregation.weighted_mean import WeightedMean
from polyclinic.core.tensor_files import load_about
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.recovery import (
    NoQuorumError,
    SpoiltRoundError,
    aggregate_problem,
    left_out,
    suspect,
    training_collapsed,
)
from polyclinic.federation.server import Server
from support import Keeper, assert_same, fail, final_tensors, spoiling, tiny_recipe, tiny_server

POISON = 10.0  # in the bias of the classifier: below the bound on updates
HARMFUL = 0.8  # above any bias of the network as built, below the weighted mean with one poisoned update


class Poisoned(InProcess):
    """The site ``west`` poisons its update in some rounds; honest sites diverge on a model that holds the poison."""

    rounds: ClassVar[tuple[int, ...]] = ()

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        spoilt = float(broadcast.weights["classifier.bias"].abs().max()) > HARMFUL
        for answer in super().train(broadcast, sites):
            assert isinstance(answer, Update)
            if answer.site == "west":
                if broadcast.round in self.rounds:
                    answer.weights["classifier.bias"][0] = POISON
                yield answer
            else:
                reason = "RuntimeError: the training diverged: 'classifier.bias' holds NaN or infinite values"
                yield Failure(answer.site, answer.round, reason) if spoilt else answer


class Absent(InProcess):
    """The same federation without poison, in which ``west`` is away in some rounds."""

    rounds: ClassVar[tuple[int, ...]] = ()

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            yield fail(answer) if answer.site == "west" and broadcast.round in self.rounds else answer  # type: ignore[arg-type]


def server_of(
    kind: type[InProcess],
    folder: Path,
    *rounds: int,
    total: int = 4,
    method: str = "fedbn",
    keeper: Keeper | None = None,
) -> Server:  # fmt: skip
    engine = type("One", (kind,), {"rounds": rounds})
    recipe = tiny_recipe(method, training={"rounds": total, "lr": 1e-4})
    return tiny_server(folder, recipe, observer=keeper, engine=engine)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_poisoned_model_is_taken_back_and_the_run_ends_as_if_the_site_had_been_away(
    number: int, resumed: bool, tmp_path: Path
) -> None:
    """The sites have trained on the poisoned model and stored that: they go back too, kept weights and optimiser."""
    poisoned = server_of(Poisoned, tmp_path / "poisoned", number, keeper=(keeper := Keeper()))
    if resumed:
        while poisoned.state.round <= number:
            poisoned.round()
        assert float(poisoned.checkpoint.load_model("last")[0]["classifier.bias"].abs().max()) > HARMFUL
        poisoned = server_of(Poisoned, tmp_path / "poisoned", number, keeper=(keeper := Keeper()))
    poisoned.fit()
    honest = server_of(Absent, tmp_path / "honest", number)
    honest.fit()
    assert_same(final_tensors(poisoned), final_tensors(honest))
    for which in ("best", "last"):
        (weights, _, best), (wanted, _, wanted_best) = (s.checkpoint.load_model(which) for s in (poisoned, honest))
        assert best == wanted_best
        assert_same(weights, wanted)
    why = "left out of the repeated round: most sites could not train on the model that came of its update"
    assert (number, "west", why) in keeper.refusals
    assert [event for event in keeper.events if event["round"] == number][-1]["refused"] == {"west": why}
    assert keeper.events[-1]["refused"] == {}, "it may come back"


def test_a_run_killed_between_any_two_writes_around_a_taken_back_round_goes_on_to_the_same_result(
    tmp_path: Path,
) -> None:
    with written_by("slow checkpoints"), copied_at_every_moment(tmp_path / "run", tmp_path) as moments:
        reference = server_of(Poisoned, tmp_path / "run", 1, total=3)
        reference.fit()
    assert [number for number, _, _ in reference.state.returns] == [1]
    for moment in moments[::2]:
        resumed = server_of(Poisoned, moment, 1, total=3)
        resumed.fit()
        assert_same(final_tensors(resumed), final_tensors(reference))


class FoundLater(Poisoned):
    """The same poison, and nobody diverges on it."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in InProcess.train(self, broadcast, sites):
            assert isinstance(answer, Update)
            if answer.site == "west" and broadcast.round in self.rounds:
                answer.weights["classifier.bias"][0] = POISON
            yield answer


def test_a_round_can_be_taken_back_where_sites_are_two_rounds_ahead_of_what_is_repeated(tmp_path: Path) -> None:
    """Round 1 is poisoned, and sites train on it without a word, in round 2 and in round 3 too, whose checkpoint is not

    on disk yet when the run is killed. The resumed run finds the poison in round 2: sites go back to before round 1.
    """
    with written_by("slow checkpoints"), copied_at_every_moment(tmp_path / "run", tmp_path) as moments:
        server_of(FoundLater, tmp_path / "run", 1).fit()
    killed = [
        moment
        for moment in moments
        if (moment / "sites/north/round-00003.safetensors").exists()
        and load_about(moment / "server/server.safetensors")["round"] == 2
    ]
    assert killed
    honest = server_of(Absent, tmp_path / "honest", 1)
    honest.fit()
    poisoned = server_of(Poisoned, killed[0], 1)
    poisoned.fit()
    assert [number for number, _, _ in poisoned.state.returns] == [1]
    assert_same(final_tensors(poisoned), final_tensors(honest))


def test_a_training_stops_again_at_a_round_that_is_repeated(tmp_path: Path) -> None:
    """What was found out about the model of a round is not true of the one that takes its place."""
    poisoned = server_of(Poisoned, tmp_path, 1)
    seen = []
    while not poisoned.done:
        poisoned.fit(stops=(2,))
        seen.append((poisoned.state.round, len(poisoned.state.returns)))
    assert seen == [(2, 0), (2, 1), (4, 1)]


def test_a_site_that_poisons_every_round_is_left_out_for_good(tmp_path: Path) -> None:
    server = server_of(Poisoned, tmp_path, 0, 1, 2, 3, 4, total=5, method="fedavg", keeper=(keeper := Keeper()))
    server.fit()
    assert [(number, site) for number, site, _ in server.state.returns] == [(0, "west"), (1, "west")]
    last = {event["round"]: event["refused"] for event in keeper.events}
    assert all("left out" in refused["west"] for refused in last.values())
    assert float(server.state.weights["classifier.bias"].abs().max()) < HARMFUL


def test_a_training_that_diverges_without_a_suspect_ends_as_before(tmp_path: Path) -> None:
    """Nobody is blamed for a learning rate that is too high."""

    class Diverging(InProcess):
        def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
            for answer in super().train(broadcast, sites):
                reason = "RuntimeError: the training diverged: 'w' holds NaN or infinite values"
                yield Failure(answer.site, answer.round, reason) if broadcast.round else answer

    server = tiny_server(tmp_path, tiny_recipe(), engine=Diverging)
    server.round()
    before = server.checkpoint.server.read_bytes()
    with pytest.raises(NoQuorumError, match=r"Round 2 got 0 good updates of 3 sites.*diverged.*--resume"):
        server.round()
    assert server.checkpoint.server.read_bytes() == before


def test_a_negative_variance_shows_in_the_validation_and_is_taken_back(tmp_path: Path) -> None:
    """Poisoned buffers do no harm to a training; the outputs of all sites are NaN."""

    def spoil(update: Update) -> Update:
        for name, tensor in update.weights.items():
            if name.endswith("running_var"):
                tensor.fill_(-1e6)
        return update

    recipe = tiny_recipe(network={"norm": "batch"})
    server = tiny_server(tmp_path / "a", recipe, observer=(keeper := Keeper()), engine=spoiling("west", spoil))
    server.round()
    why = "left out of the repeated round: no site got finite outputs from the model that came of its update"
    assert keeper.events[0]["refused"] == {"west": why}
    honest = tiny_server(tmp_path / "b", recipe, engine=spoiling("west", fail))
    honest.round()
    assert_same(server.state.weights, honest.state.weights)


def test_an_aggregate_that_is_not_finite_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tiny_server(tmp_path, tiny_recipe())
    server.round()
    before = {name: tensor.clone() for name, tensor in server.state.weights.items()}

    def overflowing(self, server, updates):  # type: ignore[no-untyped-def]
        return {n: t * inf if t.is_floating_point() else t for n, t in next(iter(list(updates))).weights.items()}

    monkeypatch.setattr(WeightedMean, "aggregate", overflowing)
    with pytest.raises(NoQuorumError, match=r"Round 2 .*"):
        server.round()
    back = tiny_server(tmp_path, tiny_recipe())
    assert back.state.round == 1
    assert_same(back.state.weights, before)


def test_what_may_not_replace_the_model() -> None:
    declared = {"style": (Shared("mean", (2,), "m"),), "gaa": (Shared("gap", (), "g", finite=False),)}
    good = {"w": torch.ones(2), "n": torch.tensor(3)}
    assert aggregate_problem(good, {"gaa": {"x": torch.tensor(nan)}, "style": {"p": torch.ones(2)}}, declared) is None
    assert "in the new global model 'w' holds NaN" in str(aggregate_problem({"w": torch.tensor([nan])}, {}, declared))
    assert "a value of 3e+38" in str(aggregate_problem({"w": torch.tensor([3e38])}, {}, declared))
    problem = aggregate_problem(good, {"style": {"pool": torch.tensor([inf])}}, declared)
    assert problem == "what component style would broadcast as 'pool' holds NaN or infinite values"


def test_when_a_training_collapsed() -> None:
    diverged = {"a": "failed: RuntimeError: the training diverged: 'w' holds NaN or infinite values"}
    assert training_collapsed(["a"], diverged, [])
    assert not training_collapsed(["a", "b"], diverged, [{"dice": 0.5}]), "one site of two"
    assert training_collapsed(["a", "b"], diverged, [{"dice": nan, "ce": inf}]), "skipped steps, so finite weights"
    assert not training_collapsed(["a", "b"], {"a": "is late", "b": "is not connected"}, [])
    assert not training_collapsed(["a", "b", "c"], {}, [{}, {}, {"dice": nan, "ce": 0.1}])


def test_who_is_left_out_and_who_is_suspected() -> None:
    assert left_out([(3, "a", "x"), (3, "b", "y")], 3)["b"] == "left out of the repeated round: y"
    assert left_out([(3, "a", "x"), (3, "b", "y")], 3).keys() == {"a", "b"}
    assert left_out([(3, "a", "x"), (3, "b", "y")], 4) == {}
    assert left_out([(3, "a", "x"), (7, "a", "y")], 9) == {"a": "left out: two rounds had to be taken back for it"}
    usual = [[0.0, 1.0, 1.0]]
    assert suspect({"a": usual, "b": [[0.0, 9.0, 1.0]]}, 0) is None, "not far enough from the others"
    assert suspect({"a": usual, "b": [[0.0, 11.0, 1.0]]}, 0) == "b"
    assert suspect({"a": usual, "b": [[0.0, 1.0, 11.0]]}, 0) == "b"
    assert suspect({}, 0) is None


def test_the_sentence_names_round_site_and_reason() -> None:
    error = SpoiltRoundError(4, "west", "in the new global model 'w' holds NaN or infinite values")
    assert str(error) == (
        "Round 5 was spoilt: in the new global model 'w' holds NaN or infinite values; the update of site 'west' "
        "deviates most, look into it and go on with --resume."
    )
