"""What a validation found, in words for a person."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyclinic.core.wording import first_finding, printable_line, readable_bytes


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)

    size: Literal["auto"] | tuple[int, ...] = "auto"
    rounds: int = 1
    fast: bool = False
    name: Annotated[str, Field(pattern="^[a-z]+$")] = "a"
    pair: Annotated[list[int], Field(min_length=2, max_length=2)] = [1, 2]
    fixed: tuple[int, int] = (1, 2)
    even: int = 2

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("it must be even")
        return value


@pytest.mark.parametrize(
    ("table", "words", "about"),
    [
        ({"rounds": "many"}, "it must be a whole number", "key = 'many'"),
        ({"fast": "yes"}, "it must be true or false", "key = 'yes'"),
        ({"name": 5}, 'it must be text (in quotes, such as "5", where it looks like a number)', "key = 5"),
        ({"name": "A"}, "it must be text that matches ^[a-z]+$", "key = 'A'"),
        ({"pair": 5}, "it must be a list, such as [5]", "key = 5"),
        ({"pair": [1]}, "it must be a list of at least 2 values", "key = [1]"),
        ({"pair": [1, 2, 3]}, "it must be a list of at most 2 values", "key = [1, 2, 3]"),
        ({"pair": [1, "b"]}, "it must be a whole number", "key: 'b'"),
        ({"fixed": (1,)}, "it must be a longer list", "key = (1,)"),
        ({"even": 3}, "it must be even", "key = 3"),
        ({"size": 5}, "it must be 'auto', or a list, such as [5]", "key = 5"),
    ],
)
def test_the_first_fault_in_words(table: dict[str, Any], words: str, about: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Inner.model_validate(table)
    finding = first_finding(caught.value)
    assert finding.words == words
    assert finding.about("key") == about
    assert finding.place[0] == next(iter(table))


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (5e12, "5000.0 GB")],
)
def test_sizes_are_in_powers_of_1000(number: float, words: str) -> None:
    assert readable_bytes(number) == words


@given(st.text(max_size=40) | st.builds(lambda text, times: text * times, st.text(max_size=20), st.integers(0, 100)))
def test_a_line_of_a_site_is_printable_and_short(text: str) -> None:
    line = printable_line(text)
    assert line.isprintable()
    assert len(line) <= 500
    assert printable_line(line) == line
