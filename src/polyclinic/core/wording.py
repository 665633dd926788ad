"""Words for people: what a validation found, sizes, and sentences that came from elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MB = 10**6
"""Bytes of a megabyte, in every setting and in everything that is printed."""

_LONGEST_LINE = 500  # characters of a sentence that came from another machine
_NOUNS = {
    "string_type": 'text (in quotes, such as "5", where it looks like a number)',
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
}


@dataclass(frozen=True)
class Finding:
    """The first thing that is wrong: the place of the key, the value, what it must be, and whether it is in a list."""

    place: tuple[int | str, ...]
    value: Any
    words: str
    kind: str
    inside: bool

    def about(self, key: str) -> str:
        """``key = value`` where the value is the key's, ``key: value`` where it is one of a list."""
        return f"{key}: {self.value!r}" if self.inside else f"{key} = {self.value!r}"


def first_finding(error: ValidationError, depth: int = 1) -> Finding:
    """The first thing that is wrong; where a key takes one of several types, all of them are named.

    ``depth`` is the length of a key's place: 1, or 2 for a key in a table.
    """
    details = error.errors()
    first = details[0]
    inside = any(isinstance(part, int) for part in first["loc"])
    if first["type"] == "missing" and inside:
        return Finding(first["loc"], first["input"], "it must be a longer list", "length", False)
    if first["type"] == "value_error":
        words = first["msg"].removeprefix("Value error, ")
    else:
        place = first["loc"][:depth]
        same = [detail for detail in details if detail["input"] is first["input"] and detail["loc"][:depth] == place]
        words = "it must be " + ", or ".join(dict.fromkeys(map(_noun, same)))
    return Finding(first["loc"], first["input"], words, first["type"], inside)


def _noun(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in ("tuple_type", "list_type"):
        return f"a list, such as [{detail['input']}]"
    if kind in ("too_short", "too_long"):
        number, limit = (context["min_length"], "least") if kind == "too_short" else (context["max_length"], "most")
        return f"a list of at {limit} {number} value{'' if number == 1 else 's'}"
    if kind == "string_pattern_mismatch":
        return f"text that matches {context['pattern']}"
    return _NOUNS.get(kind) or detail["msg"].removeprefix("Input should be ")


def readable_bytes(number: float) -> str:
    """A size for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return ""


def printable_line(text: str) -> str:
    """A site's text as one printable line of bounded length, for a terminal and a record: it may hold anything."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * _LONGEST_LINE])
    return " ".join(plain.split())[:_LONGEST_LINE]


def reads_as_formula(text: str) -> bool:
    """Whether a spreadsheet that opens a CSV file would compute a text instead of showing it; a number is none.

    >>> [reads_as_formula(text) for text in ("=cmd()", "@SUM(A1)", "-1+2", "-7", "case-1")]
    [True, True, True, False, False]
    """
    return text.startswith(("=", "+", "-", "@")) and re.fullmatch(r"[+-]\d+(\.\d+)?", text) is None


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where there are several.

    >>> counted(1, "site"), counted(3, "site")
    ('1 site', '3 sites')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
