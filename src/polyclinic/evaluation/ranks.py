"""Ranks of methods over sites: Friedman's test, and the critical difference of Nemenyi (Demšar, 2006)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_DIGITS = 12  # means that are equal but for the order of a sum must tie


def site_ranks(values: Array, better: Literal["higher", "lower"]) -> Array:
    """The rank of each method at each site, 1 for the best; equal values share a rank. ``values`` is (sites, methods).

    >>> site_ranks(np.array([[0.9, 0.7, 0.7]]), "higher").tolist()
    [[1.0, 2.5, 2.5]]
    """
    from scipy import stats

    rounded = np.round(values, _DIGITS)
    ranks: Array = stats.rankdata(-rounded if better == "higher" else rounded, axis=1)
    return ranks


def friedman_p(ranks: Array) -> float | None:
    """The p-value that all methods rank alike, by the chi-square approximation; from three methods and two sites on."""
    from scipy import stats

    sites, methods = ranks.shape
    if methods < 3 or sites < 2:
        return None
    if np.ptp(ranks) == 0:
        return 1.0
    return float(stats.friedmanchisquare(*ranks.T).pvalue)


def critical_difference(methods: int, sites: int) -> float:
    """How far two mean ranks must be apart to differ at 5 %, all pairs of methods considered.

    >>> round(critical_difference(5, 30), 3)  # 2.728 * sqrt(5 * 6 / (6 * 30)), from the table of Demšar
    1.114
    """
    from scipy import stats

    quantile = stats.studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * sites)))


def alike(mean_ranks: Array, difference: float) -> list[tuple[int, int]]:
    """Groups of methods that the critical difference does not tell apart, as first and last place in sorted order.

    ``mean_ranks`` is sorted. A group inside of another is left out, and so is a method that is alone.

    >>> alike(np.array([1.0, 1.5, 2.4, 4.0]), 1.0)
    [(0, 1), (1, 2)]
    """
    groups: list[tuple[int, int]] = []
    for first, rank in enumerate(mean_ranks):
        last = int(np.flatnonzero(mean_ranks - rank <= difference)[-1])
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return groups
