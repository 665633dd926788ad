"""Tests of paired differences, one number a case, with effect sizes, and Holm's correction of several of them.

The caller has one difference a case: what was measured several times of a case, once a seed, is averaged before. Seeds
are repeated measures of a case and never make more cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_DIGITS = 12  # differences that are equal but for the order of a sum must tie
_MOST_TIED = 13  # cases; all of their 8192 signs are tried where ties spoil the tables of the exact test
_MOST_EXACT = 50  # cases without ties, as SciPy decides


@dataclass(frozen=True)
class PairedTests:
    """Two-sided tests of whether differences are about zero; ``None`` is what too few or too equal cases leave open."""

    cases: int
    zeros: int
    """Cases without a difference: Wilcoxon's test leaves them out, the t-test keeps them."""
    p_t: float | None
    p_wilcoxon: float | None
    exact: bool
    """Whether the p-value of Wilcoxon's test is exact; else it is the normal approximation."""
    cohens_dz: float | None
    """Mean over standard deviation of the differences."""
    rank_biserial: float | None
    """Share of the ranks that is above zero minus the share below, from -1 to 1."""


def paired_tests(differences: Sequence[float] | Array) -> PairedTests:
    """Test differences of cases, ``(cases,)``, none of them NaN.

    >>> paired_tests([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).p_wilcoxon
    0.03125
    """
    known: Array = np.asarray(differences, dtype=np.float64).round(_DIGITS)
    count, nonzero = len(known), known[known != 0]
    zeros = count - len(nonzero)
    if count < 2:
        return PairedTests(count, zeros, None, None, False, None, None)
    if not len(nonzero):
        return PairedTests(count, zeros, 1.0, 1.0, True, 0.0, 0.0)
    p_wilcoxon, exact = _wilcoxon(nonzero)
    p_t, effect = _student(known)
    return PairedTests(count, zeros, p_t, p_wilcoxon, exact, effect, _rank_biserial(nonzero))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; ``None`` was not tested and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[place] = largest
    return corrected


def _student(differences: Array) -> tuple[float | None, float | None]:
    """The p-value of the paired t-test and Cohen's d_z; neither without a spread."""
    from scipy import stats

    if np.ptp(differences) <= 1e-9 * np.abs(differences).max():
        return None, None
    return float(stats.ttest_1samp(differences, 0.0).pvalue), float(differences.mean() / differences.std(ddof=1))


def _wilcoxon(nonzero: Array) -> tuple[float, bool]:
    """The p-value of the signed-rank test, and whether it is exact."""
    from scipy import stats

    count, tied = len(nonzero), len(np.unique(np.abs(nonzero))) < len(nonzero)
    if tied and count <= _MOST_TIED:
        return _share_of_signs(stats.rankdata(np.abs(nonzero)), np.sign(nonzero)), True
    return min(float(stats.wilcoxon(nonzero).pvalue), 1.0), not tied and count <= _MOST_EXACT


def _share_of_signs(ranks: Array, signs: Array) -> float:
    """The share of all signs whose ranks sum up to as much; SciPy's own way to try them takes two seconds."""
    every = 1 - 2 * ((np.arange(2 ** len(ranks))[:, None] >> np.arange(len(ranks))) & 1)
    return float((np.abs(every @ ranks) >= abs(signs @ ranks) - 1e-9).mean())


def _rank_biserial(nonzero: Array) -> float:
    from scipy import stats

    ranks = stats.rankdata(np.abs(nonzero))
    return float((ranks * np.sign(nonzero)).sum() / ranks.sum())
