"""Bootstrap intervals of an average over sites: cases are resampled within their sites, and seeds if asked for.

Sites and seeds are independent sources of chance, so each is resampled while the others stay as they are, and the
deviations are added. Cases and seeds are crossed, not nested: a case that is drawn comes with all of its tests, and a
seed with all of its cases. What only a case in a seed has is then counted from both sides, which errs towards wide
intervals (Cameron, Gelbach and Miller, 2011, subtract it; the rest may be negative).

Test sets of few cases need two corrections. A draw takes one case fewer than a site has (Rao and Wu, 1988): with as
many as there are, the variance of a mean of n is too small by (n - 1) / n, half of it for two cases. And percentiles
are widened from the normal distribution to Student's (Hesterberg, 2015), with the degrees of freedom of Satterthwaite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyclinic.core.seeds import seed_for

Array = npt.NDArray[np.float64]

RESAMPLES = 10_000
_MOST_NUMBERS = 4_000_000  # held at once


def average_over_sites(differences: Sequence[Array], seeds: Sequence[int]) -> float:
    """The number of a table: a mean over the cases of a site, over sites, over the tests of a seed, over seeds.

    ``differences`` has an array ``(tests, cases)`` for each site, NaN where a test has no value of a case; ``seeds``
    has the seed of each test. Of a seed with several tests (repeated splits) each counts alike.
    """
    return float(_averages(differences, _all_cases(differences), _all_seeds(seeds))[0])


def bootstrap_interval(
    differences: Sequence[Array], seeds: Sequence[int], over_seeds: bool, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The 95 % interval of ``average_over_sites``, over cases or over cases and seeds.

    A site with one case does not show how its cases spread: it is taken to be as at the site with most cases. There is
    no interval without a site that has two cases, nor ``over_seeds`` with one seed. The same input gives the same
    interval, whatever else is compared.
    """
    kept = [site[:, ~np.isnan(site).all(axis=0)] for site in differences]
    kept = [site for site in kept if site.shape[1]]
    number, most = len(set(seeds)), max((site.shape[1] for site in kept), default=0)
    if most < 2 or (over_seeds and number < 2):
        return None
    sources = [_of_site(kept, seeds, place, resamples) for place in range(len(kept))]
    widening = _widening(sources)
    if over_seeds:
        sources.append((_seed_deviations(kept, seeds, resamples), number))
        widening = max(widening, _widening(sources))  # a second source never makes an interval narrower
    total = np.sum([deviations for deviations, _ in sources], axis=0)
    low, high = average_over_sites(kept, seeds) + widening * np.nanquantile(total, (0.025, 0.975))
    return float(low), float(high)


def _of_site(differences: Sequence[Array], seeds: Sequence[int], place: int, resamples: int) -> tuple[Array, int]:
    """The deviations that come of a site's cases, and how many cases they come of."""
    sizes = [site.shape[1] for site in differences]
    rng = np.random.default_rng(seed_for(0, "bootstrap", "cases", place))
    if sizes[place] > 1:
        return _site_deviations(differences, seeds, place, resamples, rng), sizes[place]
    largest = sizes.index(max(sizes))
    borrowed = _site_deviations(differences, seeds, largest, resamples, rng)
    return borrowed * np.sqrt(sizes[largest]), sizes[largest]  # from a mean of so many cases to a single one


def _site_deviations(
    differences: Sequence[Array], seeds: Sequence[int], place: int, resamples: int, rng: np.random.Generator
) -> Array:
    """How far the average moves when the cases of one site are drawn again, ``(resamples,)``."""
    cases = differences[place].shape[1]
    weights, most = _all_cases(differences), max(1, _MOST_NUMBERS // (cases + len(seeds)))
    found = []
    for start in range(0, resamples, most):
        weights[place] = _drawn(rng, min(most, resamples - start), cases)
        found.append(_averages(differences, weights, _all_seeds(seeds)))
    return np.concatenate(found) - average_over_sites(differences, seeds)


def _seed_deviations(differences: Sequence[Array], seeds: Sequence[int], resamples: int) -> Array:
    """How far the average moves when seeds are drawn again, ``(resamples,)``."""
    rng = np.random.default_rng(seed_for(0, "bootstrap", "seeds"))
    weights = _of_tests(_drawn(rng, resamples, len(set(seeds))), seeds)
    return _averages(differences, _all_cases(differences), weights) - average_over_sites(differences, seeds)


def _widening(sources: Sequence[tuple[Array, int]]) -> float:
    """Student's 97.5 % quantile over the normal one, for deviations that come of so many cases or seeds."""
    from scipy import stats

    variances = [(float(np.nanvar(deviations)), size - 1) for deviations, size in sources]
    known = [(variance, freedom) for variance, freedom in variances if variance > 0]
    if not known:
        return 1.0
    freedom = sum(variance for variance, _ in known) ** 2 / sum(variance**2 / free for variance, free in known)
    return float(stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975))


def _drawn(rng: np.random.Generator, rows: int, things: int) -> Array:
    """How often each of several things is in a draw of one fewer, ``(rows, things)``."""
    places = rng.integers(0, things, (rows, things - 1)) + things * np.arange(rows)[:, None]
    return np.bincount(places.ravel(), minlength=rows * things).reshape(rows, things).astype(np.float64)


def _all_cases(differences: Sequence[Array]) -> list[Array]:
    return [np.ones((1, site.shape[1])) for site in differences]


def _all_seeds(seeds: Sequence[int]) -> Array:
    return _of_tests(np.ones((1, len(set(seeds)))), seeds)


def _of_tests(seed_weights: Array, seeds: Sequence[int]) -> Array:
    """Weights of seeds ``(rows, seeds in order)`` as weights of their tests ``(rows, tests)``."""
    names = sorted(set(seeds))
    return np.stack([seed_weights[:, names.index(seed)] / list(seeds).count(seed) for seed in seeds], axis=1)


def _averages(differences: Sequence[Array], case_weights: Sequence[Array], test_weights: Array) -> Array:
    """The average for each row of weights, ``(rows,)``; what a draw has no case of does not count."""
    total, sites = np.zeros((1, test_weights.shape[1])), np.zeros((1, test_weights.shape[1]))
    for values, weights in zip(differences, case_weights, strict=True):
        known = ~np.isnan(values)
        sums, counts = weights @ np.where(known, values, 0.0).T, weights @ known.T.astype(np.float64)
        total, sites = total + _ratio(sums, counts, 0.0), sites + (counts > 0)
    there = test_weights * (sites > 0)
    return _ratio((_ratio(total, sites, 0.0) * there).sum(axis=1), there.sum(axis=1), np.nan)


def _ratio(above: Array, below: Array, otherwise: float) -> Array:
    ratio: Array = np.divide(above, below, out=np.full(above.shape, otherwise), where=below > 0)
    return ratio
