"""The lines below a table: what `tests/report/test_statistics.py` does not reach."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.report import statistics_words as module
from polyclinic.report.statistics import Interval, MethodStatistics
from polyclinic.report.statistics_words import note_of, p_number, sentence_of

ONE = MethodStatistics(
    "fgasl", 0.012, Interval(-0.004, 0.026), Interval(-0.008, 0.031), 0.2, 0.12, True, 0.4, 0.24, 0.3, 0.2, 24, 0, 0,
    (0, 1, 2), ("a", "b"), (), True, "not shown", "",
)  # fmt: skip


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_the_line_of_the_issue() -> None:
    assert sentence_of(ONE, "fixmatch", "higher", 100, (0, 1, 2)) == (
        "fgasl against fixmatch: +1.20 [-0.80, 3.10], p = 0.24: not shown with 3 seeds"
    )


def test_distances_are_not_percent() -> None:
    far = replace(ONE, difference=-1.5, over_cases_and_seeds=Interval(-2.5, -0.5), verdict="better")
    assert sentence_of(far, "x", "lower", 1, (0, 1, 2)).startswith(
        "fgasl against x: -1.50 [-2.50, -0.50], p = 0.24: better"
    )


def test_names_cannot_write_lines_of_their_own() -> None:
    odd = replace(ONE, method="a\n\x1b[31mb", only_means=("s\r1", "s2", "s3", "s4", "s5"))
    line = sentence_of(odd, "x\ty", "higher", 100, (0, 1, 2))
    assert line.isprintable()
    assert "without s 1, s2, s3, 2 more, of which only means left" in line


def test_the_note_says_what_was_resampled_and_corrected() -> None:
    alone = replace(ONE, over_cases_and_seeds=None)
    assert "interval over cases;" in note_of([alone])
    assert "Holm" not in note_of([alone])
    assert "interval over cases and seeds;" in note_of([ONE, alone])
    assert "Holm-corrected for 2 methods." in note_of([ONE, alone])
    assert note_of([replace(ONE, p_wilcoxon=None)]) == ""


@given(st.floats(0, 1))
def test_a_p_value_never_looks_like_the_other_side_of_the_level(p: float) -> None:
    text = p_number(p)
    assert (text == "<0.001" or float(text) < 0.05) == (p < 0.05)


@pytest.mark.parametrize(("p", "text"), [(0.05, "0.05"), (0.0499, "0.0499"), (0.0012, "0.0012"), (0.5, "0.5")])
def test_p_values_have_two_digits_where_that_is_enough(p: float, text: str) -> None:
    assert p_number(p) == text
