"""Bootstrap intervals: small ones by hand, the rest by what must hold of any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from polyclinic.evaluation.resampling import average_over_sites, bootstrap_interval

NAN = np.nan


def widening(freedom: float) -> float:
    return float(stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975))


def test_the_average_is_over_sites_and_seeds_whatever_their_size() -> None:
    """Site a: seed 0 has cases 1 and 3 (mean 2), seed 1 only 6; site b: 10 in both. Seeds: 6 and 8, so 7."""
    a, b = np.array([[1.0, 3.0, NAN], [NAN, NAN, 6.0]]), np.array([[10.0], [10.0]])
    assert average_over_sites([a, b], [0, 1]) == 7.0


def test_a_seed_with_two_splits_counts_once() -> None:
    """Seed 0 has 1 and 3 (mean 2), seed 1 has 6: 4, not 10 / 3."""
    assert average_over_sites([np.array([[1.0], [3.0], [6.0]])], [0, 0, 1]) == 4.0


def test_three_cases_by_hand() -> None:
    """Cases 0, 3, 6. Of the 9 draws of two one has the mean 0 and one the mean 6: 3 ± 3, with 2 degrees of freedom."""
    low, high = bootstrap_interval([np.array([[0.0, 3.0, 6.0]])], [0], over_seeds=False) or (NAN, NAN)
    assert (low, high) == pytest.approx((3 - 3 * widening(2), 3 + 3 * widening(2)))


def test_a_draw_takes_one_case_fewer() -> None:
    """Cases 0, 2, 4, 6. Of the 64 draws of three one has the sum 0 and three the sum 2: 1/64 < 0.025 < 4/64, so 2 / 3.

    Of the 256 draws of four, 1 + 4 have the sums 0 and 2, and 10 the sum 4: 5/256 < 0.025 < 15/256, so 1.
    """
    low, high = bootstrap_interval([np.array([[0.0, 2.0, 4.0, 6.0]])], [0], over_seeds=False) or (NAN, NAN)
    assert (low, high) == pytest.approx((3 - 7 / 3 * widening(3), 3 + 7 / 3 * widening(3)))


def test_two_sites_are_drawn_apart() -> None:
    """Sites with cases 0, 4 and 0, 4: draws of one give ± 1 each, together -2, 0 or 2 with 1/4 at the ends."""
    site = np.array([[0.0, 4.0]])
    low, high = bootstrap_interval([site, site], [0], over_seeds=False) or (NAN, NAN)
    assert (low, high) == pytest.approx((2 - 2 * widening(2), 2 + 2 * widening(2)), rel=1e-3)


def test_seeds_by_hand() -> None:
    """All cases 2 with one seed and 4 with the other: no chance in the cases, ± 1 of seeds with 1 degree of freedom."""
    site = np.array([[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]])
    assert bootstrap_interval([site], [5, 9], over_seeds=False) == pytest.approx((3.0, 3.0))
    assert bootstrap_interval([site], [5, 9], over_seeds=True) == pytest.approx((3 - widening(1), 3 + widening(1)))


def test_a_second_source_of_chance_never_makes_it_narrower() -> None:
    """Two cases have one degree of freedom, five seeds four; together they have more, and must not gain by it."""
    site = np.array([[0.0, 4.0]]) + np.array([[-4.0], [-2.0], [0.0], [2.0], [4.0]])
    cases, both = (bootstrap_interval([site], range(5), over) or (NAN, NAN) for over in (False, True))
    assert both[0] < cases[0]
    assert cases[1] < both[1]


def test_more_seeds_of_the_same_numbers_are_not_more_cases() -> None:
    """A fresh case a seed would make the interval half as wide with four of them."""
    site = np.array([[0.1, -0.2, 0.4, 0.3, 0.0]])
    once = bootstrap_interval([site], [0], over_seeds=False)
    assert bootstrap_interval([np.tile(site, (4, 1))], [0, 1, 2, 3], over_seeds=False) == pytest.approx(once)


def test_many_cases_have_the_interval_of_students_t() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0.02, 0.05, 200)
    expected = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    found = bootstrap_interval([values[None]], [0], over_seeds=False)
    assert found == pytest.approx(expected, abs=4e-4)


def test_it_covers_what_it_should() -> None:
    """Sites of 6, 4, 2 and 2 cases and three seeds: the truth is in about 95 of 100 intervals, not in 80."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(100):
        seeds = rng.normal(0, 0.01, (3, 1))
        sites = [seeds + rng.normal(0, 0.03, (1, n)) + rng.normal(0, 0.03, (3, n)) for n in (6, 4, 2, 2)]
        low, high = bootstrap_interval(sites, [0, 1, 2], over_seeds=True, resamples=400) or (NAN, NAN)
        inside += low <= 0 <= high
    assert 92 <= inside <= 100


def test_a_site_with_one_case_is_taken_to_spread_like_the_largest() -> None:
    several = np.array([[0.0, 0.1, 0.2, 0.3]])
    narrow = bootstrap_interval([several, np.array([[0.1, 0.1]])], [0], over_seeds=False) or (NAN, NAN)
    wide = bootstrap_interval([several, np.array([[0.1]])], [0], over_seeds=False) or (NAN, NAN)
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


@pytest.mark.parametrize(
    ("sites", "seeds", "over_seeds"),
    [
        ([], [], False),
        ([np.array([[0.1]])], [0], False),
        ([np.array([[0.1]]), np.array([[0.2]])], [0], False),
        ([np.array([[0.1, 0.2]])], [0], True),
        ([np.array([[0.1, 0.2], [0.3, 0.4]])], [7, 7], True),
    ],
)
def test_where_nothing_repeats_there_is_no_interval(
    sites: list[np.ndarray], seeds: list[int], over_seeds: bool
) -> None:
    assert bootstrap_interval(sites, seeds, over_seeds) is None


shapes = st.tuples(st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 10**6))


@given(shapes, st.floats(-2, 2), st.booleans())
@settings(max_examples=40)
def test_it_moves_with_the_values_and_holds_for_any_gaps(
    shape: tuple[int, list[int], int], shift: float, over_seeds: bool
) -> None:
    tests, sizes, seed = shape
    rng = np.random.default_rng(seed)
    sites = [rng.normal(0, 1, (tests, size)) for size in sizes]
    for site in sites:
        site[rng.random(site.shape) < 0.2] = NAN
    if all(np.isnan(site).all() for site in sites):
        return
    seeds = list(range(tests))
    found = bootstrap_interval(sites, seeds, over_seeds, resamples=200)
    assert found == bootstrap_interval(sites, seeds, over_seeds, resamples=200), "the same input, the same interval"
    moved = bootstrap_interval([site + shift for site in sites], seeds, over_seeds, resamples=200)
    assert (found is None) == (moved is None)
    if found and moved:
        assert np.isfinite(found).all()
        assert found[0] <= found[1]
        assert moved == pytest.approx(np.add(found, shift), abs=1e-9)
