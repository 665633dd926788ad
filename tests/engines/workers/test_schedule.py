"""The order in which sites start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyclinic.engines.workers.schedule import Expected, next_site, window_size

SIZES = {"a": 10, "b": 40, "c": 0}


def test_before_anything_is_measured_sizes_decide() -> None:
    assert Expected(SIZES.__getitem__).of(["a", "b", "c"]) == {"a": 10, "b": 40, "c": 1}


def test_a_measured_site_counts_as_measured_and_the_others_at_its_pace() -> None:
    expected = Expected(SIZES.__getitem__)
    expected.note("a", 5.0)
    assert expected.of(["a", "b", "c"]) == {"a": 5.0, "b": 20.0, "c": 0.5}


def test_of_the_longest_sites_one_that_the_worker_knows_goes_first_and_else_the_earliest() -> None:
    expected = {"a": 6.0, "b": 9.0, "c": 10.0, "d": 9.5}
    assert next_site(["a", "b", "c", "d"], expected, frozenset()) == "b"
    assert next_site(["a", "b", "c", "d"], expected, frozenset("dc")) == "c"
    assert next_site(["a", "b", "c", "d"], expected, frozenset("a")) == "b", "much shorter: it waits"
    assert next_site(["a"], expected, frozenset()) == "a"


@given(st.integers(1, 64), st.integers(1, 2000), st.integers(0, 10**9), st.integers(0, 2**31))
def test_the_window_keeps_all_workers_busy_and_memory_bounded(workers: int, sites: int, size: int, memory: int) -> None:
    window = window_size(workers, sites, size, memory)
    assert min(sites, 2 * workers) <= window <= sites
    assert window <= 2 * workers + 2 or window * size <= memory or size == 0
