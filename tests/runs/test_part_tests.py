"""Tests of a part as files: there when all of one is there, and of which model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyclinic.runs.part_tests import PartTest, round_tests

ROWS: Any = [{"site": "a", "case": "1", "image": "1", "class": "x", "metric": "dice", "value": 0.5}]


def test_a_round_that_was_repeated_is_tested_again(tmp_path: Path) -> None:
    test = PartTest(tmp_path, 40)
    assert not test.done_after([])
    test.make(lambda: (ROWS, {"bytes_down": 3}), lambda facts: None, returns=[])
    assert test.done_after([])
    assert not test.done_after([(39, "a", "its update deviates")])
    test.make(lambda: (ROWS, {}), lambda facts: None, returns=[(39, "a", "its update deviates")])
    assert test.done_after([(39, "a", "its update deviates")])
    assert test.rows() == ROWS
    assert not PartTest(tmp_path).done
    assert list(round_tests(tmp_path)) == [40]


def test_a_test_that_is_not_accepted_leaves_nothing(tmp_path: Path) -> None:
    def refuse(facts: dict[str, Any]) -> None:
        raise ValueError(facts)

    with pytest.raises(ValueError, match="nobody"):
        PartTest(tmp_path).make(lambda: (ROWS, {"untested": "nobody"}), refuse)
    assert not list(tmp_path.iterdir())
