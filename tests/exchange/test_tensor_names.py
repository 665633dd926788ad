"""The names of tensors on a wire and on a disk; those of old checkpoints must stay readable."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.exchange import tensor_names
from polyclinic.exchange.tensor_names import join_names, owners_of, split_names, with_owners
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.site_store import SiteState, SiteStore

GROUPS = st.sampled_from(["weights", "optimizer", "unseen"])
OWNERS = st.text("ab_.", min_size=1, max_size=4)
NAMES = st.text("ab_./", max_size=6)  # names of tensors may hold slashes, at the ends too, and may be empty
TENSORS = st.dictionaries(NAMES, st.integers(), min_size=1, max_size=3)


def test_examples() -> None:
    result = doctest.testmod(tensor_names)
    assert result.attempted
    assert not result.failed


@given(st.dictionaries(GROUPS, TENSORS), st.dictionaries(OWNERS, TENSORS), st.dictionaries(OWNERS, TENSORS))
def test_groups_and_owners_come_back(
    plain: dict[str, dict[str, int]], shared: dict[str, dict[str, int]], components: dict[str, dict[str, int]]
) -> None:
    flat = join_names({**plain, **with_owners("shared", shared), **with_owners("component", components)})
    groups = split_names(flat, owned=("shared", "component"))
    assert owners_of("shared", groups) == shared
    assert owners_of("component", groups) == components
    assert {name: held for name, held in groups.items() if "/" not in name} == plain
    assert len(flat) == sum(len(held) for held in groups.values())


@given(st.dictionaries(st.builds("{}/{}/{}".format, OWNERS, OWNERS, NAMES), st.integers(), max_size=4), st.booleans())
def test_any_flat_names_are_split_without_loss_or_collision(flat: dict[str, int], owned: bool) -> None:
    groups = split_names(flat, owned=("a",) if owned else ())
    assert sorted(value for held in groups.values() for value in held.values()) == sorted(flat.values())


def test_a_name_keeps_its_own_slashes() -> None:
    assert split_names({"weights/a/b/c": 1}) == {"weights": {"a/b/c": 1}}
    assert split_names({"shared/cse/a/b": 1}, owned=("shared",)) == {"shared/cse": {"a/b": 1}}


def test_a_group_without_tensors_leaves_nothing_behind() -> None:
    assert join_names({"weights": {}, "shared/cse": {}}) == {}
    assert split_names({}) == {}
    assert owners_of("shared", {"weights": {"a": 1}}) == {}


def test_a_group_whose_name_only_begins_alike_is_another() -> None:
    assert owners_of("shared", {"sharedx/cse": {"a": 1}, "shared/cse": {"b": 2}}) == {"cse": {"b": 2}}


@pytest.mark.parametrize("name", ["w", "", "/w"])
def test_a_name_without_a_group_is_its_own_problem(name: str) -> None:
    (group,) = split_names({name: 1})
    assert group in ("w", "")


def test_the_names_of_a_checkpoint_on_disk_are_pinned(tmp_path: Path) -> None:
    state = ServerState(
        2, {"head.bias": torch.ones(1)}, {"cse": {"pool": torch.ones(1)}}, {"gaa": {"a": torch.ones(1)}}
    )
    Checkpoint(tmp_path).save(state, True, {"norm.weight": torch.ones(1)})
    assert load_tensors(tmp_path / "server.safetensors")[0].keys() == {
        "weights/head.bias", "unseen//norm.weight", "shared/cse/pool", "component/gaa/a",
    }  # fmt: skip
    assert load_tensors(tmp_path / "best.safetensors")[0].keys() == {"weights/head.bias", "unseen//norm.weight"}


def test_a_checkpoint_with_these_names_is_read(tmp_path: Path) -> None:
    names = ("weights/head.bias", "unseen//norm.weight", "shared/cse/pool", "component/gaa/a")
    about = {"round": 2, "best_round": 1, "best_dice": 0.5, "best_scores": {}, "stale": 0, "stopped": False}
    tensors = {name: torch.full((1,), float(number)) for number, name in enumerate(names)}
    save_tensors(tmp_path / "server.safetensors", tensors, about)
    state = Checkpoint(tmp_path).load()
    assert state is not None
    assert state.weights["head.bias"].item() == 0
    assert state.shared["cse"]["pool"].item() == 2
    assert state.components["gaa"]["a"].item() == 3
    assert Checkpoint(tmp_path).load_model("last")[1]["norm.weight"].item() == 1


def test_the_names_of_a_sites_memory_and_ledger_are_pinned(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    ones = torch.ones(1)
    store.save(
        SiteState(
            0,
            personal={"norm.weight": ones},
            optimizer={"head.bias/exp_avg": ones},
            components={"scaffold": {"c": ones}},
        )
    )
    store.save_ledgers({"privacy": {"count": ones}})
    (file,) = (path for path in tmp_path.iterdir() if path.name not in ("ledger.safetensors", ".lock"))
    assert load_tensors(file)[0].keys() >= {
        "personal/norm.weight", "optimizer/head.bias/exp_avg", "component/scaffold/c",
    }  # fmt: skip
    assert load_tensors(tmp_path / "ledger.safetensors")[0].keys() == {"privacy/count"}
    assert store.ledgers()["privacy"]["count"].item() == 1
