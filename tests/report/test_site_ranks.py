"""Ranks of methods over sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from grid_values import Values, write_grid
from polyclinic.report.grid_cases import read_cases
from polyclinic.report.site_ranks import ranks_of


def sites(*values: float | None) -> Values:
    return {f"s{number}": {"c": value} for number, value in enumerate(values)}


def test_by_hand(tmp_path: Path) -> None:
    """Ranks at the sites: 1 2 3, 1 2.5 2.5, 2 1 3. Means 4/3, 5.5/3, 8.5/3. Seeds are averaged first."""
    methods = {
        "worst": [sites(0.5, 0.6, 0.4)], "best": [sites(0.9, 0.8, 0.6)], "middle": [sites(0.7, 0.6, 0.7)],
    }  # fmt: skip
    found = ranks_of(read_cases(write_grid(tmp_path / "grid", methods)), "dice", "higher")
    assert found is not None
    assert list(found.mean_ranks) == ["best", "middle", "worst"]
    assert list(found.mean_ranks.values()) == pytest.approx([4 / 3, 5.5 / 3, 8.5 / 3])
    assert found.critical_difference == pytest.approx(2.3437 * (3 * 4 / (6 * 3)) ** 0.5, abs=1e-3)
    assert found.sentence.startswith("Mean ranks over 3 sites, 1 is best: best 1.33, middle 1.83, worst 2.83;")
    assert found.sentence.endswith("; Friedman p = 0.15: no difference is shown.")


def test_ranks_that_differ_say_how_far_apart(tmp_path: Path) -> None:
    methods = {name: [sites(*[0.1 * number + 0.01 * site for site in range(9)])] for number, name in enumerate("abc")}
    found = ranks_of(read_cases(write_grid(tmp_path / "grid", methods)), "dice", "higher")
    assert found is not None
    assert found.sentence.endswith("Friedman p < 0.001: ranks that are 1.10 apart differ (Nemenyi).")
    turned = ranks_of(read_cases(tmp_path / "grid"), "dice", "lower")
    assert turned is not None
    assert list(turned.mean_ranks) == ["a", "b", "c"]


def test_sites_and_methods_that_lack_values_are_left_out(tmp_path: Path) -> None:
    methods = {"x": [sites(0.5, None, 0.7)], "y": [sites(0.6, 0.9, 0.6)], "z": [None]}
    found = ranks_of(read_cases(write_grid(tmp_path / "grid", methods)), "dice", "higher")
    assert found is not None
    assert (found.sites, found.friedman_p, found.mean_ranks) == (("s0", "s2"), None, {"x": 1.5, "y": 1.5})
    assert found.sentence == "Mean ranks over 2 sites, 1 is best: x 1.50, y 1.50."


def test_only_seeds_that_all_methods_have_are_ranked(tmp_path: Path) -> None:
    methods = {"x": [sites(0.5), sites(0.9)], "y": [sites(0.6), None]}
    found = ranks_of(read_cases(write_grid(tmp_path / "grid", methods)), "dice", "higher")
    assert found is not None
    assert list(found.mean_ranks) == ["y", "x"]
    alone = {"x": [sites(0.5), None], "y": [None, sites(0.6)]}
    assert ranks_of(read_cases(write_grid(tmp_path / "apart", alone)), "dice", "higher") is None
