"""Values of sites over the parts of a protocol."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import pytest

from polyclinic.evaluation.aggregate import are_numbered
from polyclinic.runs.tested_scores import scores_table, told_apart


def rows(site: str, **values: float) -> list[Any]:
    return [
        {"site": site, "case": case, "image": case, "class": "x", "metric": "dice", "value": value}
        for case, value in values.items()
    ]


def test_folds_are_taken_together_and_repeats_one_by_one() -> None:
    parts = {"one": [*rows("a", p=0.2, q=0.4), *rows("b", r=1.0)], "two": rows("a", p=0.9)}
    facts: dict[str, Any] = {"one": {}, "two": {}}
    together = scores_table(parts, facts, repeated=False)
    assert together["sites"]["a"]["dice"] == pytest.approx(mean([mean([0.2, 0.9]), 0.4])), "a case counts once"
    assert together.keys() == {"sites", "average"}
    table = scores_table(parts, facts, repeated=True)
    assert table["sites"]["a"]["dice"] == pytest.approx(mean([0.3, 0.9]))
    assert table["deviation"]["sites"]["a"]["dice"] == pytest.approx(stdev([0.3, 0.9]))
    assert table["deviation"]["sites"]["b"]["dice"] is None, "one repeat has no deviation"
    assert table["average"]["dice"] == pytest.approx(mean([mean([0.3, 1.0]), 0.9]))
    assert table["repeats"]["two"] == {"sites": {"a": {"dice": 0.9}}, "average": {"dice": 0.9}}


def test_sites_that_send_statistics_alone_stand_beside_the_others() -> None:
    stats = {"stats": {"b": {"dice": {"mean": 0.5, "sd": 0.1, "count": 3}}}}
    other = {"stats": {"b": {"dice": {"mean": 0.9, "sd": 0.1, "count": 1}}}}
    parts, facts = {"one": rows("a", p=0.2), "two": rows("a", q=0.4)}, {"one": stats, "two": other}
    assert scores_table(parts, facts, repeated=False)["sites"]["b"]["dice"] == pytest.approx((3 * 0.5 + 0.9) / 4)
    assert scores_table(parts, facts, repeated=True)["sites"]["b"]["dice"] == pytest.approx((0.5 + 0.9) / 2)


def test_numbers_in_place_of_names_begin_anew_in_every_fold() -> None:
    def numbered(site: str, *values: float) -> list[Any]:
        found = rows(site, **{f"case-{number}": value for number, value in enumerate(values, start=1)})
        return [{**row, "image": f"image-{place}"} for place, row in enumerate(found, start=1)]

    parts = {
        "fold-1": [*numbered("a", 0.2, 0.4, 0.6), *rows("b", p=0.1)],
        "fold-2": [*numbered("a", 1.0), *rows("b", q=0.3)],
    }
    facts: dict[str, Any] = {"fold-1": {}, "fold-2": {}}
    apart = told_apart(parts)
    assert scores_table(apart, facts, repeated=False)["sites"]["a"]["dice"] == pytest.approx(mean([0.2, 0.4, 0.6, 1.0]))
    assert [row["case"] for row in apart["fold-2"]] == ["fold-2/case-1", "q"]
    assert are_numbered(row for row in apart["fold-1"] if row["site"] == "a")
    once = {"without-a": numbered("a", 0.2), "without-b": numbered("b", 0.4)}
    assert told_apart(once) == once, "each site is tested in one part"
    named = {"one": rows("a", p=0.2), "two": rows("a", p=0.9)}
    assert told_apart(named) == named, "a name is the same case wherever it stands"
