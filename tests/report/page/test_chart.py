from __future__ import annotations

from math import inf, nan

import pytest

from polyclinic.report.page.chart import band, chart_text, finite, rounded


def test_markup_of_others_is_text() -> None:
    assert chart_text("<b>&lt;\n") == "&lt;b>&amp;lt; "


def test_a_band_holds_every_curve() -> None:
    rounds, middle, low, high = band([{1: 0.2, 2: 0.4}, {1: 0.4, 3: 0.9}])
    assert (rounds, low, high) == ([1, 2, 3], [0.2, 0.4, 0.9], [0.4, 0.4, 0.9])
    assert middle == pytest.approx([0.3, 0.4, 0.9])


def test_numbers_are_such_that_json_holds_them() -> None:
    assert [finite(value) for value in (1, 0.5, nan, inf, None, "1")] == [1.0, 0.5, None, None, None, None]
    assert rounded([1 / 3, None]) == [0.33333, None]
