"""The server's checkpoint: what it holds, and which model is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import save_tensors
from polyclinic.federation.checkpoint import Checkpoint, ServerState


def test_a_checkpoint_comes_back_and_a_damaged_one_gets_a_sentence(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.load() is None
    shared_storage = torch.arange(3.0)
    saved = ServerState(
        2,
        {"w.x": shared_storage},
        {"cse": {"pool": torch.ones(2)}},
        {"gaa": {"a": torch.ones(1)}},
        1,
        0.5,
        {"north": 0.5},
        1,
        False,
    )
    checkpoint.save(saved, True, {"n.x": shared_storage})
    back = checkpoint.load()
    assert back is not None
    assert (back.round, back.best_round, back.best_dice, back.stale) == (2, 1, 0.5, 1)
    assert back.best_scores == {"north": 0.5}
    assert back.weights["w.x"].tolist() == [0, 1, 2]
    assert back.shared["cse"]["pool"].tolist() == [1, 1]
    assert back.components["gaa"]["a"].tolist() == [1]
    weights, unseen, number = checkpoint.load_model("best")
    assert (weights.keys(), unseen.keys(), number) == ({"w.x"}, {"n.x"}, 1)
    data = checkpoint.server.read_bytes()
    checkpoint.server.write_bytes(data[: len(data) // 2])
    with pytest.raises(PolyclinicError, match=r"server\.safetensors: not a readable safetensors file"):
        checkpoint.load()


def state_after(rounds: int, best: int) -> ServerState:
    return ServerState(rounds, {"w": torch.tensor([float(rounds)])}, best_round=best, best_dice=0.5)


def test_the_best_and_the_last_model_with_their_rounds(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(PolyclinicError, match="there is no model yet; finish the run with --resume first"):
        checkpoint.load_model("last")
    checkpoint.save(state_after(1, 0), True, {})
    checkpoint.save(state_after(2, 0), False, {"n": torch.ones(1)})
    weights, unseen, number = checkpoint.load_model("best")
    assert (weights["w"].item(), unseen, number) == (1.0, {}, 0)
    weights, unseen, number = checkpoint.load_model("last")
    assert (weights["w"].item(), unseen.keys(), number) == (2.0, {"n"}, 1)


def test_without_a_best_model_the_newest_serves(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(ServerState(3, {"w": torch.ones(1)}), False, {})
    assert checkpoint.load_model("best")[2] == 2


def test_a_file_that_is_no_checkpoint_gets_a_sentence(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    save_tensors(checkpoint.server, {"w": torch.ones(1)}, {})
    with pytest.raises(PolyclinicError, match="not a checkpoint of a run; start a new run without --resume"):
        checkpoint.load()


def test_the_newest_round_can_be_taken_back(tmp_path: Path) -> None:
    checkpoint, first = Checkpoint(tmp_path), ServerState(weights={"w": torch.tensor([0.0])})
    for rounds in (1, 2, 3):
        checkpoint.save(state_after(rounds, rounds - 1), True, {"n": torch.tensor([float(rounds)])})
    assert checkpoint.can_take_back(2)
    assert not checkpoint.can_take_back(1)
    back = checkpoint.take_back(first, [(2, "west", "y")])
    assert (back.round, back.best_round, back.returns, back.weights["w"].item()) == (2, 1, [(2, "west", "y")], 2.0)
    assert checkpoint.load_model("best")[0]["w"].item() == 2.0
    assert checkpoint.load_model("last")[1]["n"].item() == 2.0
    assert not checkpoint.can_take_back(1), "two rounds are not kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", "server.safetensors"]


def test_the_first_round_is_taken_back_to_the_start(tmp_path: Path) -> None:
    checkpoint, first = Checkpoint(tmp_path), ServerState(weights={"w": torch.tensor([0.0])})
    checkpoint.save(state_after(1, 0), True, {})
    assert checkpoint.can_take_back(0)
    back = checkpoint.take_back(first, [(0, "west", "y")])
    assert (back.round, back.best_round, back.weights["w"].item(), back.returns) == (0, None, 0.0, [(0, "west", "y")])
    assert not checkpoint.best.exists()


def test_an_older_best_model_stays_when_a_round_is_taken_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(state_after(1, 0), True, {})
    checkpoint.save(state_after(2, 0), False, {})
    assert not checkpoint.best_before.exists()
    checkpoint.take_back(ServerState(), [])
    assert checkpoint.load_model("best")[0]["w"].item() == 1.0


def test_a_finished_part_keeps_no_older_state(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for rounds in (1, 2):
        checkpoint.save(state_after(rounds, rounds - 1), True, {})
    checkpoint.finish(trains_on=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", "server.safetensors"]


@pytest.mark.parametrize("trains_on", [True, False])
def test_a_finished_part_keeps_the_memory_of_components_only_for_a_longer_run(trains_on: bool, tmp_path: Path) -> None:
    checkpoint, value = Checkpoint(tmp_path), torch.ones(2)
    before = ServerState(2, {"w": value}, {"cse": {"pool": value}}, {"gaa": {"a": value}}, 1, 0.5, {"north": 0.5})
    checkpoint.save(before, True, {"n": value})
    checkpoint.finish(trains_on)
    after = checkpoint.load()
    assert after is not None
    assert (after.shared.keys(), after.components.keys()) == (({"cse"}, {"gaa"}) if trains_on else (set(), set()))
    assert (after.round, after.best_round, after.best_scores) == (2, 1, {"north": 0.5})
    for which in ("best", "last"):
        weights, unseen, number = checkpoint.load_model(which)
        assert (weights.keys(), unseen.keys(), number) == ({"w"}, {"n"}, 1)
    written = checkpoint.server.stat().st_mtime_ns
    checkpoint.finish(trains_on)
    assert checkpoint.server.stat().st_mtime_ns == written, "nothing left to do"


def test_where_files_cannot_have_two_names_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    checkpoint = Checkpoint(tmp_path)
    for rounds in (1, 2):
        checkpoint.save(state_after(rounds, 0), False, {})
    assert checkpoint.take_back(ServerState(), []).round == 1


def test_a_checkpoint_of_an_earlier_version_loads(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    save_tensors(checkpoint.server, {"weights/w": torch.ones(1)}, {"round": 2, "best_round": 1, "best_dice": 0.5})
    state = checkpoint.load()
    assert state is not None
    assert (state.round, state.norms, state.returns) == (2, {}, [])
    assert not checkpoint.can_take_back(1)
