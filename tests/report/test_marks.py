"""Best and second values, and names that are shown as they are."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.report import marks as module
from polyclinic.report.marks import best_and_second, markdown_text


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("values", "metric", "expected"),
    [
        ([0.7, 0.9, 0.8, None], "dice", ["", "best", "second", ""]),
        ([0.7, 0.9, 0.8], "hd95", ["best", "", "second"]),
        ([0.9, 0.9, 0.8, 0.7], "dice", ["best", "best", "second", ""]),
        ([0.9, 0.8, 0.8], "dice/nucleus", ["best", "second", "second"]),
        ([0.90001, 0.90002, 0.8], "dice", ["best", "best", "second"]),
        ([0.9, 0.8], "dice", ["best", ""]),
        ([0.9, 0.9], "dice", ["", ""]),
        ([0.9], "dice", [""]),
        ([None, None, None], "dice", ["", "", ""]),
        ([0.9, 0.8, 0.7], "of-a-plugin", ["", "", ""]),
    ],
)
def test_marks(values: list[float | None], metric: str, expected: list[str]) -> None:
    names = [f"m{number}" for number in range(len(values))]
    assert list(best_and_second(dict(zip(names, values, strict=True)), metric).values()) == expected


@given(st.text(max_size=40))
def test_a_name_cannot_end_a_line_or_open_a_tag(name: str) -> None:
    text = markdown_text(name)
    assert "\n" not in text
    assert "<script" not in markdown_text(f"{name}<script>")
    assert not markdown_text(f"[{name}]: http://x").startswith("[")
    assert "](" not in markdown_text(f"{name}](http://x)").replace("\\](", "")
