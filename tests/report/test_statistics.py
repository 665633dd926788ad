"""The statistics of a grid: hand-made values, and every way in which there is little to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grid_values import Values, one_site, write_grid, write_run
from polyclinic.core.errors import PolyclinicError
from polyclinic.report.statistics import MethodStatistics, grid_statistics
from polyclinic.report.tables import comparison_of

EIGHT = [0.50, 0.62, 0.55, 0.71, 0.66, 0.48, 0.59, 0.80]
GAINS = [0.010, 0.021, 0.012, 0.033, 0.014, 0.025, 0.016, 0.037]


def shifted(values: list[float], by: list[float]) -> Values:
    return one_site([value + more for value, more in zip(values, by, strict=True)])


def against(grid: Path, metric: str = "dice") -> MethodStatistics:
    (only,) = grid_statistics(grid, metric).methods.values()
    return only


def test_seeds_are_repeated_measures_and_not_fresh_cases(tmp_path: Path) -> None:
    """Eight cases, all better: p is 2 / 2**8, with one seed and with five. Forty cases would have p = 2e-12."""
    found = {}
    for seeds in (1, 5):
        jitter = [[gain + 1e-4 * (2 * seed - seeds + 1) for gain in GAINS] for seed in range(seeds)]
        methods = {"x": [one_site(EIGHT)] * seeds, "y": [shifted(EIGHT, gains) for gains in jitter]}
        found[seeds] = against(write_grid(tmp_path / f"{seeds}", methods))
    for one in found.values():
        assert (one.cases, one.p_wilcoxon, one.wilcoxon_exact) == (8, 2 / 2**8, True)
    widths = [one.over_cases.high - one.over_cases.low for one in found.values() if one.over_cases]
    assert widths[1] == pytest.approx(widths[0]), "more seeds of the same cases do not narrow it"
    assert found[5].p_t == pytest.approx(found[1].p_t)


def test_by_hand(tmp_path: Path) -> None:
    """Site a has differences 0.01 and 0.03, mean 0.02, site b 0.10: the average over sites is 0.06, of cases 0.047."""
    grid = write_grid(
        tmp_path / "grid",
        {"x": [{"a": {"1": 0.5, "2": 0.6}, "b": {"1": 0.5}}], "y": [{"a": {"1": 0.51, "2": 0.63}, "b": {"1": 0.6}}]},
    )
    one = against(grid)
    assert one.difference == pytest.approx(0.06)
    assert one.cohens_dz == pytest.approx(np.mean([0.01, 0.03, 0.1]) / np.std([0.01, 0.03, 0.1], ddof=1))
    assert (one.rank_biserial, one.p_wilcoxon) == (1.0, 0.25)
    assert (one.sites, one.seeds, one.verdict) == (("a", "b"), (0,), "not shown")


@pytest.mark.parametrize(
    ("metric", "sign", "verdict"), [("dice", 1, "better"), ("dice", -1, "worse"), ("hd95", -1, "better"),
                                    ("hd95", 1, "worse"), ("of-a-plugin", 1, "higher")],
)  # fmt: skip
def test_which_direction_is_better_depends_on_the_metric(tmp_path: Path, metric: str, sign: int, verdict: str) -> None:
    gains = [sign * gain for gain in GAINS]
    methods = {"x": [one_site(EIGHT)] * 2, "y": [shifted(EIGHT, gains)] * 2}
    one = against(write_grid(tmp_path / "grid", methods, metric), metric)
    assert one.verdict == verdict
    assert one.sentence.endswith(f"p = 0.0078: {verdict}, with 8 cases and 2 seeds")


def test_one_seed_shows_nothing_about_a_method(tmp_path: Path) -> None:
    one = against(write_grid(tmp_path / "grid", {"x": [one_site(EIGHT)], "y": [shifted(EIGHT, GAINS)]}))
    assert (one.verdict, one.over_cases_and_seeds) == ("not shown", None)
    assert one.sentence.endswith("p = 0.0078: better on these 8 cases, but not shown with 1 seed")


def test_seeds_that_disagree_leave_it_open(tmp_path: Path) -> None:
    """Every case is better by 2 with one seed and worse by 1 with the other: sure of the models, not of the method."""
    methods = {
        "x": [one_site(EIGHT)] * 2,
        "y": [shifted(EIGHT, [0.02 + gain for gain in GAINS]), shifted(EIGHT, [-0.01] * 8)],
    }
    one = against(write_grid(tmp_path / "grid", methods))
    assert one.p_wilcoxon == 2 / 2**8
    assert one.sentence.endswith(": not shown, the 2 seeds differ too much")


def test_identical_methods(tmp_path: Path) -> None:
    one = against(write_grid(tmp_path / "grid", {"x": [one_site(EIGHT)] * 2, "y": [one_site(EIGHT)] * 2}))
    assert (one.difference, one.p_t, one.p_wilcoxon, one.zeros, one.verdict) == (0.0, 1.0, 1.0, 8, "equal")
    assert one.sentence == "y against x: +0.00 [0.00, 0.00]: no difference in any of 8 cases"


def test_holm_is_over_the_methods_of_the_table(tmp_path: Path) -> None:
    mixed = [gain * (-1) ** number for number, gain in enumerate(GAINS)]
    methods = {
        "x": [one_site(EIGHT)], "y": [shifted(EIGHT, GAINS)], "z": [shifted(EIGHT, mixed)],
        "w": [shifted(EIGHT, [2 * gain for gain in GAINS])],
    }  # fmt: skip
    found = grid_statistics(write_grid(tmp_path / "grid", methods), "dice")
    assert [one.p_wilcoxon for one in found.methods.values()] == [2 / 2**8, found.methods["z"].p_wilcoxon, 2 / 2**8]
    assert found.methods["y"].p_wilcoxon_holm == 3 * 2 / 2**8
    assert found.methods["z"].p_wilcoxon_holm == found.methods["z"].p_wilcoxon
    assert "Holm-corrected for 3 methods" in found.note


def test_another_reference_turns_the_signs(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {"x": [one_site(EIGHT)] * 2, "y": [shifted(EIGHT, GAINS)] * 2})
    there, back = grid_statistics(grid, "dice").methods["y"], grid_statistics(grid, "dice", " y ").methods["x"]
    assert back.difference == pytest.approx(-(there.difference or 0))
    assert (there.verdict, back.verdict) == ("better", "worse")
    with pytest.raises(PolyclinicError, match=r"--reference z: not among the methods\. There are x, y"):
        grid_statistics(grid, "dice", "z")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([0.5], [0.6], "y against x: +10.00: not tested with 1 case"),
        ([0.5, 0.6, 0.7], [0.6, 0.65, 0.72], "p = 0.25: not shown with only 3 cases"),
        ([0.5, 0.6, 0.7], [0.6, 0.6, 0.72], "p = 0.5: not shown, only 2 of 3 cases differ"),
        ([None, 0.5], [0.5, None], "+0.00: not tested, no case has a value for both; without 2 values that only one of "
         "them has"),
        ([0.5, 0.6, None], [0.6, 0.65, 0.7], "without 1 value that only one of them has"),
    ],
)  # fmt: skip
def test_few_cases_get_a_sentence(tmp_path: Path, first: list[Any], second: list[Any], words: str) -> None:
    one = against(write_grid(tmp_path / "grid", {"x": [one_site(first)], "y": [one_site(second)]}))
    assert one.sentence.endswith(words)


def test_sites_with_one_case_each_have_no_interval(tmp_path: Path) -> None:
    sites = {f"s{number}": {"c": value} for number, value in enumerate(EIGHT)}
    better = {f"s{number}": {"c": a + b} for number, (a, b) in enumerate(zip(EIGHT, GAINS, strict=True))}
    one = against(write_grid(tmp_path / "grid", {"x": [sites] * 2, "y": [better] * 2}))
    assert one.interval is None
    assert one.sentence.endswith("p = 0.0078: not shown, no site has two cases")


def test_runs_that_are_not_finished(tmp_path: Path) -> None:
    methods = {
        "x": [one_site(EIGHT)] * 3, "y": [shifted(EIGHT, GAINS), None, shifted(EIGHT, GAINS)], "z": [None] * 3,
    }  # fmt: skip
    found = grid_statistics(write_grid(tmp_path / "grid", methods), "dice")
    assert found.methods["y"].seeds == (0, 2)
    assert found.methods["y"].sentence.endswith("better, with 8 cases and 2 seeds; 2 of 3 seeds are finished")
    assert found.methods["z"].sentence == "z against x: not tested, no seed is finished for both"
    assert list(found.fairness) == ["x", "y"]
    assert found.ranks is not None
    assert list(found.ranks.mean_ranks) == ["y", "x"]


def means_only(grid: Path, values: Values, site: str, means: list[float]) -> Path:
    """Two methods with one seed; of ``site`` only means left."""
    runs = []
    for number, (method, mean) in enumerate(zip("xy", means, strict=True)):
        facts = {"stats": {site: {"dice": {"mean": mean, "std": 0.1, "count": 9}}}}
        write_run(grid / f"run{number}", values, facts=facts)
        runs.append({"method": method, "seed": 0, "folder": f"run{number}"})
    (grid / "grid.json").write_text(json.dumps({"methods": ["x", "y"], "seeds": [0], "runs": runs}))
    return grid


def test_sites_that_let_only_means_out(tmp_path: Path) -> None:
    one = against(means_only(tmp_path / "all", {}, "b", [0.7, 0.75]))
    assert one.difference == pytest.approx(0.05)
    assert one.sentence == "y against x: +5.00: not tested, only means left the sites"
    some = against(means_only(tmp_path / "some", one_site([0.5, 0.6]), "b", [0.7, 0.75]))
    assert (some.sites, some.only_means, some.difference) == (("a",), ("b",), 0.0)
    assert some.sentence.endswith("no difference in any of 2 cases; without b, of which only means left")


def test_numbered_cases_are_not_tested_over_seeds(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid", {m: [one_site(EIGHT)] * 2 for m in "xy"}, splits=["p", "q"])
    for path in grid.glob("*/cases.csv"):
        lines = path.read_text().splitlines()
        numbered = [line.replace("c0", "case-1").replace("case-1-image", "image-1") for line in lines[:2]]
        path.write_text("\n".join(numbered) + "\n")
    one = against(grid)
    assert (one.interval, one.p_t) == (None, None)
    assert one.sentence == "y against x: +0.00: not tested, sites number their cases and every seed has other ones"


def test_a_metric_that_no_run_has(tmp_path: Path) -> None:
    found = grid_statistics(write_grid(tmp_path / "grid", {m: [one_site(EIGHT)] for m in "xy"}), "iou")
    assert found.sentences == ("y against x: not tested, no case has a value for both",)
    assert (found.fairness, found.ranks, found.note) == ({}, None, "")


def test_one_method_alone(tmp_path: Path) -> None:
    found = grid_statistics(write_grid(tmp_path / "grid", {"x": [one_site(EIGHT)]}), "dice")
    assert (found.methods, found.ranks, found.note) == ({}, None, "")
    assert found.fairness["x"].worst_site == "a"


def test_fairness_by_hand(tmp_path: Path) -> None:
    """Means over two seeds: a 0.6, b 0.8, c 0.7. Deviation 0.1, largest minus smallest 0.2."""
    seeds = [{"a": {"1": 0.5}, "b": {"1": 0.8}, "c": {"1": 0.7}}, {"a": {"1": 0.7}, "b": {"1": 0.8}, "c": {"1": 0.7}}]
    grid = write_grid(tmp_path / "dice", {"x": seeds})
    fair = grid_statistics(grid, "dice").fairness["x"]
    assert fair.worst_site == "a"
    assert (fair.worst, fair.deviation, fair.spread) == pytest.approx((0.6, 0.1, 0.2))
    distances = grid_statistics(write_grid(tmp_path / "hd95", {"x": seeds}, "hd95"), "hd95")
    assert distances.fairness["x"].worst_site == "b", "a long distance is bad"


def test_json_is_plain_and_has_no_nan(tmp_path: Path) -> None:
    methods = {"x": [one_site([0.5, None])] * 2, "y": [one_site([0.6, 0.5])] * 2, "z": [None, None]}
    found = grid_statistics(write_grid(tmp_path / "grid", methods), "dice").to_json()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["methods"]["y"]["cases"] == 1
    assert found["methods"]["y"]["sentence"].startswith("y against x: +10.00")


@given(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 10**6))
@settings(max_examples=15)
def test_the_difference_is_that_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, seeds: int, sizes: list[int], number: int
) -> None:
    """Whatever sites and test sets the seeds have, words and table speak of one number."""
    rng = np.random.default_rng(number)

    def run(seed: int) -> Values:
        return {
            f"s{site}": {f"c{(case + seed) % (size + 1)}": float(rng.random()) for case in range(size)}
            for site, size in enumerate(sizes)
        }

    grid = write_grid(
        tmp_path_factory.mktemp("grid") / "g", {m: [run(seed) for seed in range(seeds)] for m in "xy"},
        splits=[str(seed) for seed in range(seeds)],
    )  # fmt: skip
    assert against(grid).difference == pytest.approx(comparison_of(grid, "dice").difference("y"))
