"""Epsilon against the condition of Balle and Wang (2018), written out here."""

from __future__ import annotations

import sys
from math import erfc, exp, inf, isclose, sqrt

import pytest

from polyclinic.components.toolbox.privacy.accounting import epsilon_after, noise_for
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
