from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from polyclinic.exchange.messages import Broadcast, Update, load_message, save_message
from polyclinic.federation.site_store import SiteState, SiteStore, StateMemory


def state(number: int) -> SiteState:
    value = torch.full((2,), float(number))
    return SiteState(number, 0, {"a.b": value}, {"a.b": value - 1}, {"a.b/exp_avg": value}, {"dr": {"t": value}})


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    assert store.load(before=0) == SiteState()
    store.save(state(0))
    back = store.load(before=1)
    assert (back.round, back.best_round) == (0, 0)
    assert back.personal["a.b"].tolist() == [0, 0]
    assert back.best["a.b"].tolist() == [-1, -1]
    assert back.optimizer["a.b/exp_avg"].tolist() == [0, 0]
    assert back.components["dr"]["t"].tolist() == [0, 0]


def test_a_repeated_round_starts_from_the_state_before_it(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    for number in (0, 2, 3, 4, 6):
        store.save(state(number))
    assert store.load(before=6).round == 4
    assert store.load(before=7).round == 6
    assert store.load(before=4).round == 3, "the server has taken round 4 back, and the site has trained since"
    assert store.load(before=3).round == 2, "or it was killed before the checkpoint of 4 rounds was on disk, too"
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"round-0000{n}.safetensors" for n in (2, 3, 4, 6)]


def test_a_site_without_anything_to_remember_has_a_folder_and_no_file(tmp_path: Path) -> None:
    store = SiteStore(tmp_path / "site")
    store.save(SiteState(0, 0))
    assert tmp_path.joinpath("site").is_dir()
    assert not list(tmp_path.joinpath("site").iterdir())
    assert SiteStore(tmp_path / "site").load(before=1) == SiteState()
    store.save(state(1))
    store.save(SiteState(2, 0))  # once there was something, a file says that it is over
    assert SiteStore(tmp_path / "site").load(before=2).personal
    assert SiteStore(tmp_path / "site").load(before=3) == SiteState(2, 0)


def test_a_site_elsewhere_keeps_three_states(tmp_path: Path) -> None:
    store = SiteStore(tmp_path, newest=3)
    for number in range(5):
        store.save(state(number))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"round-0000{n}.safetensors" for n in (2, 3, 4)]


@pytest.mark.parametrize("trains_on", [True, False])
def test_a_finished_run_keeps_one_state_and_the_optimiser_only_for_a_longer_run(
    trains_on: bool, tmp_path: Path
) -> None:
    store = SiteStore(tmp_path, StateMemory())
    for number in range(6):
        store.save(state(number))
    store.save_ledgers({"privacy": {"secret": torch.ones(1)}})
    store.finish(5, trains_on)  # round 5 was taken back, and the run stopped before it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.safetensors", "round-00004.safetensors"]
    kept = store.load(before=9)
    assert (kept.round, kept.best_round) == (4, 0)
    assert (kept.personal["a.b"].tolist(), kept.best["a.b"].tolist()) == ([4, 4], [3, 3])
    assert (bool(kept.optimizer), bool(kept.components)) == (trains_on, trains_on)


@pytest.mark.parametrize("trains_on", [True, False])
def test_a_finished_run_keeps_no_file_without_anything_in_it(trains_on: bool, tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    store.save(SiteState(3, optimizer={} if trains_on else {"w/exp_avg": torch.ones(2)}))
    store.finish(4, trains_on)
    assert not list(tmp_path.iterdir())
    store.finish(4, trains_on)
    assert store.load(before=4) == SiteState()


def test_best_kept_weights_are_noted_once_and_before_they_change() -> None:
    memory = SiteState(4, None, {"n": torch.tensor(4.0)})
    memory.note_best(4)
    assert memory.personal_at(4)["n"] == 4
    memory.round, memory.personal = 5, {"n": torch.tensor(5.0)}
    memory.note_best(4)
    assert memory.personal_at(4)["n"] == 4
    assert memory.personal_at(None)["n"] == 5
    memory.note_best(7)
    assert memory.personal_at(7)["n"] == 5


@pytest.mark.parametrize(
    "message",
    [
        Broadcast(3, {"w": torch.ones(2, 2)}, {"cdpa": {"enc/1": torch.zeros(3)}}, best_round=2),
        Update(
            "north",
            1,
            {"w": torch.ones(2), "n": torch.tensor(4)},
            5,
            6,
            {"gaa": {"gap": torch.tensor(1.5)}},
            {"ce": 0.5},
            1.25,
        ),
    ],
)
def test_messages_survive_a_disk(message: Broadcast | Update, tmp_path: Path) -> None:
    save_message(tmp_path / "m.safetensors", message)
    back = load_message(tmp_path / "m.safetensors")
    assert type(back) is type(message)
    plain = {k: v for k, v in vars(message).items() if k not in ("weights", "shared")}
    assert {k: v for k, v in vars(back).items() if k not in ("weights", "shared")} == plain
    assert back.bytes == message.bytes
    assert back.weights.keys() == message.weights.keys()
    for owner, tensors in message.shared.items():
        assert all(torch.equal(back.shared[owner][n], t) for n, t in tensors.items())


def test_memory_holds_the_newest_states_up_to_its_limit(tmp_path: Path) -> None:
    memory = StateMemory(limit_mb=40 * 2 / 10**6)
    stores = [SiteStore(tmp_path / name, memory) for name in "abc"]
    for store in stores:
        assert state(0).bytes == 32
        store.save(state(0))
    assert memory.get(tmp_path / "a", before=1) is None
    held = memory.get(tmp_path / "c", before=1)
    assert held is not None
    assert stores[2].load(before=1) is held
    assert memory.get(tmp_path / "c", before=0) is None
    taken = stores[2].take(before=1)
    assert taken is held
    assert memory.get(tmp_path / "c", before=1) is None
    assert stores[2].load(before=1).optimizer["a.b/exp_avg"].tolist() == [0, 0]
    StateMemory(limit_mb=0).put(tmp_path, state(0))


def test_the_memory_of_many_sites_can_be_written_beside_the_training() -> None:
    """One thread puts states in while another takes them out: with 50 sites a run failed with a changed dictionary."""
    memory = StateMemory(limit_mb=0.05)
    folders = [Path(f"site-{number}") for number in range(60)]
    state = SiteState(round=0, personal={"w": torch.zeros(200)})
    errors: list[Exception] = []

    def put() -> None:
        try:
            for _ in range(300):
                for folder in folders:
                    memory.put(folder, state)
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writer = Thread(target=put)
        writer.start()
        while writer.is_alive():
            for folder in folders:
                memory.drop(folder)
                memory.get(folder, 1)
    finally:
        sys.setswitchinterval(interval)
    assert not errors
