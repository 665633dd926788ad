"""Seeds are pinned: a number that changes here changes every result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.seeds import generator_for, owner_number, seed_for, seed_torch


def test_seeds_are_what_they_always_were() -> None:
    assert seed_for(0) == 4761921975702974394
    assert seed_for(0, "north", 3, "batches") == 8925917018781215118
    assert owner_number("north") == 3693752514


@given(st.integers(), st.lists(st.text("ab1", max_size=3) | st.integers(0, 99), max_size=3))
def test_a_seed_depends_on_seed_and_purpose_alone(seed: int, purpose: list[str | int]) -> None:
    number = seed_for(seed, *purpose)
    assert number == seed_for(seed, *purpose)
    assert 0 <= number < 2**63
    assert number != seed_for(seed + 1, *purpose)
    assert number != seed_for(seed, *purpose, "more")


def test_the_parts_of_a_purpose_do_not_run_together() -> None:
    assert seed_for(0, "ab", "c") != seed_for(0, "a", "bc")
    assert seed_for(1, "2") != seed_for(12)


def test_a_generator_draws_the_same_numbers_for_the_same_purpose() -> None:
    first, again, other = (generator_for(0, site, 1) for site in ("a", "a", "b"))
    numbers = torch.rand(4, generator=first)
    assert first.device.type == "cpu"
    assert torch.equal(numbers, torch.rand(4, generator=again))
    assert not torch.equal(numbers, torch.rand(4, generator=other))


@pytest.mark.parametrize("device", [None, torch.device("cuda")])
def test_torch_is_seeded_as_it_seeds_itself(device: torch.device | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    seed = seed_for(0, "network")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = torch.rand(4)
        seed_torch(seed)
        assert torch.equal(torch.rand(4), expected)


@given(st.text(max_size=20))
def test_the_number_of_a_site_fits_a_tensor(site: str) -> None:
    assert torch.tensor([owner_number(site)]).item() == owner_number(site)
