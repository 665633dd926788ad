"""Which site a free worker takes next: one of those that are expected to take longest, so that all end together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

_MUCH_SHORTER = 0.8  # of the longest; sites above this share take about as long


class Expected:
    """Seconds that a site is expected to take: what it took last time, else in proportion to its size."""

    def __init__(self, size_of: Callable[[str], int]) -> None:
        """``size_of`` gives the number of images of a site that the work is about."""
        self._size_of = size_of
        self._measured: dict[str, float] = {}

    def note(self, site: str, seconds: float) -> None:
        """What the site took just now."""
        self._measured[site] = seconds

    def of(self, sites: Sequence[str]) -> dict[str, float]:
        """Expected times of these sites, comparable with each other."""
        sizes = {site: max(1, self._size_of(site)) for site in sites}
        known = [site for site in sites if site in self._measured]
        pace = sum(self._measured[site] for site in known) / sum(sizes[site] for site in known) if known else 1.0
        return {site: self._measured.get(site, pace * sizes[site]) for site in sites}


def next_site(waiting: Sequence[str], expected: Mapping[str, float], known: frozenset[str]) -> str:
    """The site for a worker that is free, of those that wait, in the order in which the server takes answers.

    Among the sites that take about as long as the longest, one whose memory the worker holds, and the earliest: an
    answer that comes before its turn takes memory until then.

    >>> next_site(["a", "b", "c"], {"a": 1.0, "b": 2.9, "c": 3.0}, frozenset())
    'b'
    """
    longest = max(expected[site] for site in waiting)
    long = [site for site in waiting if expected[site] >= _MUCH_SHORTER * longest]
    return next((site for site in long if site in known), long[0])


def window_size(workers: int, sites: int, message_bytes: int, memory: int) -> int:
    """How far workers may run ahead of the server, in sites: answers are taken in order, and wait in memory.

    All sites where that fits into ``memory`` bytes, and enough to keep every worker at work in any case.
    """
    return min(sites, max(2 * workers + 2, memory // max(1, message_bytes)))
