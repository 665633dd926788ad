"""Epsilon against the condition of Balle and Wang (2018), written out here."""

from __future__ import annotations

import sys
from math import erfc, exp, inf, isclose, sqrt

import pytest

from polyclinic.components.toolbox.privacy.accounting import epsilon_after, epsilon_of, noise_for, noise_left
from polyclinic.core.errors import PolyclinicError


def phi(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


def naive_delta(epsilon: float, sigma: float) -> float:
    """Theorem 8 for sensitivity 1."""
    half, shift = 1 / (2 * sigma), epsilon * sigma
    return phi(half - shift) - exp(epsilon) * phi(-half - shift)


def naive_epsilon(releases: int, noise: float, delta: float) -> float:
    """Bisection; k releases are one with the noise divided by sqrt(k)."""
    low, high = 0.0, 300.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if naive_delta(middle, noise / sqrt(releases)) > delta else (low, middle)
    return high


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
@pytest.mark.parametrize(("releases", "noise"), [(1, 1.0), (10, 1.0), (100, 1.0), (100, 5.0), (300, 20.0), (1, 30.0)])
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(releases: int, noise: float, delta: float) -> None:
    assert isclose(epsilon_after(releases, noise, delta), naive_epsilon(releases, noise, delta), rel_tol=1e-6)


def test_composition_agrees_with_the_librarys_accountants() -> None:
    """Our own step is k releases as one; the library composes them by privacy loss distributions, and by Renyi."""
    import dp_accounting
    from dp_accounting import pld, rdp

    event, mine = dp_accounting.GaussianDpEvent(4.0), epsilon_after(20, 4.0, 1e-5)
    assert isclose(mine, pld.PLDAccountant().compose(event, 20).get_epsilon(1e-5), rel_tol=1e-3)
    assert mine < rdp.RdpAccountant().compose(event, 20).get_epsilon(1e-5) < 1.15 * mine


def test_no_release_costs_nothing_and_no_noise_has_no_bound() -> None:
    assert epsilon_after(0, 1.0, 1e-5) == 0
    assert epsilon_after(1, 0.0, 1e-5) == inf


@pytest.mark.parametrize(("target", "releases"), [(0.5, 1), (4.0, 100), (50.0, 10)])
def test_the_noise_for_a_target_keeps_it_and_is_no_larger_than_needed(target: float, releases: int) -> None:
    noise = noise_for(target, 1e-5, releases)
    assert isclose(naive_epsilon(releases, noise, 1e-5), target, rel_tol=1e-6)
    assert naive_epsilon(releases, 0.99 * noise, 1e-5) > target


def test_a_missing_package_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(PolyclinicError, match=r"pip install 'polyclinic\[privacy\]'"):
        epsilon_after(7, 1.234, 1e-5)


def test_releases_with_different_noises_compose_as_the_library_does() -> None:
    import dp_accounting
    from dp_accounting import pld

    noises = [4.0] * 10 + [9.0] * 30 + [2.0]
    accountant = pld.PLDAccountant()
    for noise in noises:
        accountant.compose(dp_accounting.GaussianDpEvent(noise))
    assert isclose(epsilon_of(noises, 1e-5), accountant.get_epsilon(1e-5), rel_tol=1e-3)


def test_equal_noises_give_the_number_of_before_bit_for_bit() -> None:
    for count, noise in ((1, 1.0), (3, 0.7), (200, 11.0)):
        assert epsilon_of([noise] * count, 1e-5) == epsilon_after(count, noise, 1e-5)
    assert epsilon_of([], 1e-5) == 0


@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-160, 1e-300, 5e-324])
def test_one_release_without_noise_has_no_bound_whatever_the_others_have(noise: float) -> None:
    assert epsilon_of([noise, 5.0, 1e300], 1e-5) == inf
    assert epsilon_of([noise], 1e-5) == inf


def test_the_noise_that_is_left_spends_the_rest_and_no_more() -> None:
    spent = [3.0, 4.0, 1e300]
    least = noise_left(spent, 5, 1e-5)
    assert least is not None
    assert isclose(epsilon_of([*spent, least], 1e-5), 5, rel_tol=1e-6)
    assert noise_left([0.5], 5, 1e-5) is None
    assert noise_left([0.0], 5, 1e-5) is None
    first = noise_left([], 5, 1e-5)
    assert first is not None
    assert isclose(first, noise_for(5, 1e-5, 1), rel_tol=1e-9)
