"""Which images make up the steps of an epoch, with and without unlabelled ones."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.data.batches import epoch_batches, steps_per_epoch


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_batches_cover_what_they_should(labelled: int, unlabelled: int, size: int) -> None:
    first, second = torch.arange(labelled), torch.arange(100, 100 + unlabelled)
    batches = list(epoch_batches(first, second, size, torch.Generator().manual_seed(0)))
    assert len(batches) == steps_per_epoch(labelled, unlabelled, size)
    seen = torch.cat([a for a, _ in batches]) if batches else first
    others = torch.cat([b for _, b in batches]) if batches else second
    assert all(len(a) <= size and len(b) <= size for a, b in batches)
    if not unlabelled:
        assert sorted(seen.tolist()) == first.tolist()
        return
    assert set(seen.tolist()) <= set(first.tolist())
    assert set(others.tolist()) <= set(second.tolist())
    full = min(size, labelled), min(size, unlabelled)
    assert all((len(a), len(b)) >= full for a, b in batches)
    if len(others) >= unlabelled:
        assert set(others.tolist()) == set(second.tolist())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 7), st.integers(0, 7), st.integers(1, 9), st.integers(1, 12))
def test_a_set_number_of_steps_draws_from_endless_shuffled_streams(
    labelled: int, unlabelled: int, size: int, steps: int
) -> None:
    first, second = torch.arange(labelled), torch.arange(100, 100 + unlabelled)
    batches = list(epoch_batches(first, second, size, torch.Generator().manual_seed(0), steps))
    assert len(batches) == steps_per_epoch(labelled, unlabelled, size, steps) == (steps if labelled + unlabelled else 0)
    for indices, part in ((first, 0), (second, 1)):
        seen = [batch[part] for batch in batches]
        assert all(len(batch) == min(size, len(indices)) for batch in seen)
        counts = torch.cat([*seen, indices[:0]]).bincount(minlength=200)[indices]
        assert not len(counts) or int(counts.max() - counts.min()) <= 1, "a walk ends before the next one begins"


def test_the_order_depends_on_the_generator_alone() -> None:
    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [int(index) for batch, _ in epoch_batches(torch.arange(20), None, 3, generator) for index in batch]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(20))
