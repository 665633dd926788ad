"""Tests of differences: by hand, by trying every sign, and against other packages."""

from __future__ import annotations

import doctest
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.evaluation import paired_tests as module
from polyclinic.evaluation.paired_tests import PairedTests, holm, paired_tests

TEN = [0.031, -0.012, 0.045, 0.008, 0.027, -0.005, 0.062, 0.019, -0.021, 0.038]
few = st.lists(st.integers(-4, 4).map(lambda number: number / 100), min_size=2, max_size=8)
many = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=0, max_size=60)


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_by_hand() -> None:
    """Differences 1, 2, 3, -1 (in hundredths).

    Mean 1.25, standard deviation sqrt((0.0625 + 0.5625 + 3.0625 + 5.0625) / 3) = 1.7078; d_z = 0.7319;
    t = 1.25 / (1.7078 / 2) = 1.4639 with 3 degrees of freedom, two-sided p = 0.2394.
    Ranks of 1, 2, 3, 1 are 1.5, 3, 4, 1.5: 8.5 above and 1.5 below zero, so the rank-biserial correlation is 0.7.
    Of the 16 signs of the ranks 1.5, 1.5, 3, 4 three have at most 1.5 below zero (nothing, or one of the two 1.5), and
    three at most 1.5 above: p = 6 / 16.
    """
    found = paired_tests([0.01, 0.02, 0.03, -0.01])
    assert found.cohens_dz == pytest.approx(0.7319, abs=1e-4)
    assert found.p_t == pytest.approx(0.2394, abs=1e-4)
    assert found.rank_biserial == pytest.approx(0.7)
    assert found.p_wilcoxon == pytest.approx(0.375)
    assert (found.cases, found.zeros, found.exact) == (4, 0, True)


def test_as_other_packages_have_it() -> None:
    """pingouin 0.7.0, ``wilcoxon`` and ``ttest(paired=True)`` of these differences; statsmodels 0.15.0 has the same."""
    found = paired_tests(TEN)
    assert found.p_wilcoxon == pytest.approx(0.064453125, abs=1e-12)
    assert found.rank_biserial == pytest.approx(0.6727272727, abs=1e-9)
    assert found.p_t == pytest.approx(0.048127741492, abs=1e-11)


def test_holm_as_statsmodels_has_it() -> None:
    """statsmodels 0.15.0, ``multipletests(..., method="holm")``."""
    assert holm([0.011, 0.049, 0.003, 0.31, 0.022]) == pytest.approx([0.044, 0.098, 0.015, 0.31, 0.066])


@given(few)
@settings(max_examples=30)
def test_the_signed_rank_test_is_that_of_all_signs(differences: list[float]) -> None:
    """Zeros are left out; whatever ties there are, p is the share of signs at least as far from the middle."""
    nonzero = np.array([value for value in np.round(differences, 12) if value])
    found = paired_tests(differences)
    assert found.zeros == len(differences) - len(nonzero)
    if not len(nonzero):
        assert found == PairedTests(len(differences), len(differences), 1.0, 1.0, True, 0.0, 0.0)
        return
    size = np.abs(nonzero)
    ranks = (size[:, None] > size).sum(1) + ((size[:, None] == size).sum(1) + 1) / 2
    seen = abs((ranks * np.sign(nonzero)).sum())
    sums = [abs((ranks * signs).sum()) for signs in product((-1, 1), repeat=len(ranks))]
    assert found.p_wilcoxon == pytest.approx(np.mean([total >= seen - 1e-9 for total in sums]))
    assert abs(found.rank_biserial or 0) == pytest.approx(seen / ranks.sum())


@given(many)
@settings(max_examples=60)
def test_the_other_direction_has_the_same_p(differences: list[float]) -> None:
    there, back = paired_tests(differences), paired_tests([-value for value in differences])
    for one, other in ((there.p_t, back.p_t), (there.p_wilcoxon, back.p_wilcoxon)):
        assert one == (None if other is None else pytest.approx(other))
        assert one is None or 0 <= one <= 1
    for one, other in ((there.cohens_dz, back.cohens_dz), (there.rank_biserial, back.rank_biserial)):
        assert one == (None if other is None else pytest.approx(-other))


@pytest.mark.parametrize("differences", [[], [0.3], [0.0]])
def test_no_or_one_case_is_not_tested(differences: list[float]) -> None:
    found = paired_tests(differences)
    assert (found.p_t, found.p_wilcoxon, found.cohens_dz, found.rank_biserial) == (None, None, None, None)


def test_the_same_difference_everywhere_has_ranks_but_no_t() -> None:
    found = paired_tests([0.02] * 6)
    assert (found.p_t, found.cohens_dz) == (None, None)
    assert (found.p_wilcoxon, found.rank_biserial) == (0.03125, 1.0)


def test_differences_that_are_equal_but_for_rounding_tie() -> None:
    assert paired_tests([0.1 + 0.2, -0.3, 0.5]) == paired_tests([0.3, -0.3, 0.5])


def test_ties_among_few_cases_are_as_scipy_tries_all_signs() -> None:
    differences = np.array([0.01, 0.01, -0.02, 0.03, 0.04, -0.01])
    method = stats.PermutationMethod(n_resamples=2**6)
    assert paired_tests(differences).p_wilcoxon == pytest.approx(stats.wilcoxon(differences, method=method).pvalue)


def test_ties_among_many_cases_are_approximate() -> None:
    assert not paired_tests([0.01, -0.01] * 10 + [0.02] * 5).exact
    assert paired_tests(np.linspace(-0.1, 0.3, 48)).exact


@given(st.lists(st.none() | st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_and_keeps_their_order(p_values: list[float | None]) -> None:
    corrected = holm(p_values)
    assert [p is None for p in corrected] == [p is None for p in p_values]
    known = sorted((p, c) for p, c in zip(p_values, corrected, strict=True) if p is not None and c is not None)
    assert all(p <= c <= 1 for p, c in known)
    assert [c for _, c in known] == sorted(c for _, c in known)
    if known:
        assert known[0][1] == min(1.0, known[0][0] * len(known))
