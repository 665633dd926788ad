"""Ranks over sites: by hand and against other packages."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.evaluation import ranks as module
from polyclinic.evaluation.ranks import alike, critical_difference, friedman_p, site_ranks

SITES = np.array(
    [
        [0.81, 0.79, 0.85, 0.80],
        [0.70, 0.66, 0.74, 0.71],
        [0.77, 0.78, 0.79, 0.75],
        [0.62, 0.60, 0.69, 0.61],
        [0.90, 0.86, 0.91, 0.92],
        [0.55, 0.56, 0.60, 0.50],
    ]
)


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_friedman_by_hand() -> None:
    """Rank sums 16, 20, 7, 17 over 6 sites: 12 / (6 * 4 * 5) * (256 + 400 + 49 + 289) - 3 * 6 * 5 = 9.4.

    The upper tail of chi-square with 3 degrees of freedom at 9.4 is 0.02442.
    """
    ranks = site_ranks(SITES, "higher")
    assert ranks.sum(axis=0).tolist() == [16, 20, 7, 17]
    assert friedman_p(ranks) == pytest.approx(0.02442, abs=1e-5)
    assert friedman_p(site_ranks(-SITES, "lower")) == friedman_p(ranks)


@pytest.mark.parametrize(("methods", "quantile"), [(3, 2.3437), (5, 2.7278), (10, 3.1637)])
def test_the_quantiles_are_those_of_statsmodels(methods: int, quantile: float) -> None:
    """statsmodels 0.15.0, ``qsturng(0.95, methods, inf) / sqrt(2)``."""
    found = critical_difference(methods, 12) / np.sqrt(methods * (methods + 1) / (6 * 12))
    assert found == pytest.approx(quantile, abs=1e-3)


def test_the_pairs_that_differ_are_those_of_scikit_posthocs() -> None:
    """scikit-posthocs 0.17.1, ``posthoc_nemenyi_friedman``: of all pairs only 1 and 2 are below 0.05 (0.019)."""
    means = site_ranks(SITES, "higher").mean(axis=0)
    apart = np.abs(means[:, None] - means) > critical_difference(4, 6)
    assert list(zip(*map(list, np.where(np.triu(apart))), strict=True)) == [(1, 2)]


@pytest.mark.parametrize("shape", [(4, 2), (1, 4)])
def test_two_methods_or_one_site_are_not_tested(shape: tuple[int, int]) -> None:
    assert friedman_p(np.ones(shape)) is None


def test_methods_that_tie_everywhere_do_not_differ() -> None:
    assert friedman_p(site_ranks(np.full((3, 4), 0.7), "higher")) == 1.0


@given(st.lists(st.floats(1, 6), min_size=2, max_size=8), st.floats(0, 5))
@settings(max_examples=60)
def test_groups_hold_exactly_the_methods_that_are_alike(values: list[float], difference: float) -> None:
    means = np.array(sorted(values))
    groups = alike(means, difference)
    for first in range(len(means)):
        for second in range(first + 1, len(means)):
            joined = any(start <= first and second <= end for start, end in groups)
            assert joined == (means[second] - means[first] <= difference)
    assert not any(a != b and b[0] <= a[0] and a[1] <= b[1] for a in groups for b in groups)
