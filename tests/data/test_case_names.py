"""Cases in the names of images: the default rule, patterns, and patterns that would never end."""

from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import case_names as module
from polyclinic.data.case_names import LONGEST_NAME, LONGEST_PATTERN, case_names


def test_without_a_pattern_a_slice_number_is_cut_off() -> None:
    assert case_names(None, ["p1_s02", "p1_s01", "p2"]) == {"p1_s01": "p1", "p1_s02": "p1", "p2": "p2"}


def test_the_first_group_names_the_case_whatever_the_letters() -> None:
    names = ["Müller_1", "Müller_2", "\udcff_1"]  # the last as Python reads a file name that is no UTF-8
    assert case_names("^(.+?)_", names) == {"Müller_1": "Müller", "Müller_2": "Müller", "\udcff_1": "\udcff"}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"case_pattern: '\(' is not a regular expression"),
        ("p", "case_pattern: 'p' has no group"),
        ("(q)", "does not match the image 'p1'; extend"),
        ("(q?)", "does not match the image 'p1'; extend"),
        ("(p)|1", None),
        ("(" + "p" * LONGEST_PATTERN + ")", f"of {LONGEST_PATTERN + 2} characters is not tried"),
    ],
)
def test_a_pattern_that_names_no_case_gets_a_sentence(pattern: str, words: str | None) -> None:
    if words is None:
        assert case_names(pattern, ["p1"]) == {"p1": "p"}
        return
    with pytest.raises(PolyclinicError, match=words):
        case_names(pattern, ["p1"])


def test_names_longer_than_file_systems_have_them_are_not_tried() -> None:
    with pytest.raises(PolyclinicError, match="case_pattern: is not tried on names of more than"):
        case_names("(.)", ["a" * (LONGEST_NAME + 1)])


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"((a*)*)*$",
        r"(a|aa)+$",
        r"(a|a?)+$",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        r"(.*)(.*)(.*)(.*)(.*)(.*)x\1$",
    ],
)
def test_a_pattern_that_would_never_end_is_stopped(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIME_LIMIT", 1.0)
    with pytest.raises(PolyclinicError, match=r"case_pattern: .* is still not matched after 1 seconds"):
        case_names(pattern, ["a" * 200 + "!"])
