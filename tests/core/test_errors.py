"""Suggestions for words that were mistyped."""

from __future__ import annotations

import pytest

from polyclinic.core.errors import suggestion


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fedavgg", ", did you mean 'fedavg'?"),
        ("xyz", ""),
        ("", ""),
        ("fedpro", ", did you mean 'fedprox'?"),
    ],
)
def test_only_a_close_word_is_suggested(word: str, expected: str) -> None:
    assert suggestion(word, ["fedavg", "fedprox", "moon"]) == expected


def test_nothing_is_known_and_generators_will_do() -> None:
    assert suggestion("a", []) == ""
    assert suggestion("classs", (name for name in ("classes", "sites"))) == ", did you mean 'classes'?"
