from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.prototypes.enough_cases import means_of_enough_cases

ROWS = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.0], [0.0, 1.0], [0.1, 0.9], [0.0, -1.0]])
CLUSTERS = torch.tensor([0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("cases", "minimum", "groups"),
    [
        ([0, 1, 2, 3, 4, 5], 1, [[0, 1, 2], [3, 4], [5]]),
        ([0, 1, 2, 3, 4, 5], 2, [[0, 1, 2, 5], [3, 4]]),  # the lonely row joins the nearest by cosine
        ([0, 1, 2, 3, 3, 5], 2, [[0, 1, 2, 5], [3, 4]]),  # two rows of one case are one case
        ([0, 1, 2, 3, 4, 5], 6, [[0, 1, 2, 3, 4, 5]]),
        ([0, 1, 2, 3, 4, 5], 7, []),
        ([0, 0, 0, 0, 0, 0], 2, []),
    ],
)
def test_clusters_of_few_cases_join_the_nearest(cases: list[int], minimum: int, groups: list[list[int]]) -> None:
    means = means_of_enough_cases(ROWS, CLUSTERS, torch.tensor(cases), minimum)
    if cases == [0, 1, 2, 3, 3, 5]:
        assert len(means) == 1  # and then the second cluster has one case, too
        return
    wanted = torch.stack([ROWS[group].mean(0) for group in groups]) if groups else ROWS[:0]
    torch.testing.assert_close(means, wanted)


def test_no_rows_give_no_means() -> None:
    assert means_of_enough_cases(ROWS[:0], CLUSTERS[:0], CLUSTERS[:0], 2).shape == (0, 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 12))
def test_every_mean_has_its_cases(seed: int, minimum: int, count: int) -> None:
    """With one number for each case as the row, a mean over few cases has a large share of one of them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.eye(count)
    means = means_of_enough_cases(rows, torch.randint(4, (count,), generator=generator), torch.arange(count), minimum)
    assert bool((means.count_nonzero(1) >= minimum).all())
    assert (len(means) > 0) == (count >= minimum)
