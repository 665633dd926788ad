"""Values of sites over the parts of a protocol."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import pytest

from polyclinic.runs.tested_scores import scores_table


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
