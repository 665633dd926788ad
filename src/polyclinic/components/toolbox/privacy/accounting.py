"""Epsilon of repeated Gaussian noise, by Google's ``dp-accounting``.

k releases with noise multiplier ``z``, each of which may depend on those before, are one Gaussian mechanism with
multiplier ``z / sqrt(k)`` (Dong, Roth and Su, *Gaussian differential privacy*, 2022). For a single one the library
solves the exact condition of Balle and Wang (2018), in milliseconds. Its accountants for mixtures of mechanisms give no
better number here: Renyi divergences one that is up to a tenth larger, privacy loss distributions the same after
minutes where there is little noise. Releases with multipliers ``z_i`` of their own are one mechanism with
``1 / sqrt(sum of 1 / z_i^2)``, by the same theorem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from math import inf, sqrt
from typing import Any

from polyclinic.core.errors import PolyclinicError

_NO_NOISE = 1e-9  # below it the solver fails, and epsilon is above 10^17 anyway
_ALL_NOISE = 1e100  # above it a release tells nothing, and its square is no number


def library() -> Any:
    """The package, or a sentence where it is absent."""
    try:
        import dp_accounting
    except ImportError as error:
        raise PolyclinicError(
            "privacy: computes epsilon with dp-accounting, which is not installed; pip install 'polyclinic[privacy]'."
        ) from error
    return dp_accounting


@cache
def epsilon_after(releases: int, noise: float, delta: float) -> float:
    """Epsilon at ``delta`` after so many releases; ``noise`` is the deviation over the sensitivity of one of them."""
    if releases <= 0:
        return 0.0
    combined = noise / sqrt(releases)
    return float(library().get_epsilon_gaussian(combined, delta)) if combined > _NO_NOISE else inf


def epsilon_of(noises: Iterable[float], delta: float) -> float:
    """Epsilon at ``delta`` after releases that each had a noise multiplier of its own."""
    counts = Counter(noises)
    if len(counts) <= 1:
        return next((epsilon_after(count, noise, delta) for noise, count in counts.items()), 0.0)
    return epsilon_after(1, combined_noise(counts), delta)


def combined_noise(counts: Counter[float]) -> float:
    """The multiplier of the one Gaussian mechanism that equals all releases; ``counts`` is how many had which."""
    if any(noise <= _NO_NOISE for noise in counts):
        return 0.0
    loudness = sum(count / noise**2 for noise, count in counts.items() if noise < _ALL_NOISE)
    return 1 / sqrt(loudness) if loudness else inf


@cache
def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """The smallest noise multiplier that keeps ``epsilon`` at ``delta`` over so many releases."""
    return float(library().get_sigma_gaussian(epsilon, delta)) * sqrt(releases)


def noise_left(noises: Iterable[float], epsilon: float, delta: float) -> float | None:
    """The smallest noise with which one more release keeps ``epsilon``, or ``None`` where nothing is left."""
    spent, limit = combined_noise(Counter(noises)), noise_for(epsilon, delta, 1)
    left = limit**-2 - (spent**-2 if spent else inf)
    return 1 / sqrt(left) if left > 0 else None
