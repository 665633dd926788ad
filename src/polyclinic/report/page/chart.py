"""Charts as plain data for Plotly, which draws them in the browser.

Colours are tokens (``@m0``, ``@m0/0.15``, ``@ink``) that the page resolves for the theme, and again when it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean
from typing import Any

Trace = dict[str, Any]
MANY = 8
"""With more methods than this, a chart starts with some of them, and the others are a click away."""


@dataclass(frozen=True)
class Chart:
    """One chart: ``label`` is what a screen reader says, ``note`` the line beside it."""

    label: str
    note: str
    data: Sequence[Trace]
    layout: dict[str, Any]
    height: int = 340

    def plain(self) -> dict[str, Any]:
        """What the page's script gets."""
        return {"data": list(self.data), "layout": self.layout, "height": self.height}


def chart_text(text: object) -> str:
    """Text of others for Plotly, which reads ``<b>``, ``<a>`` and entities as markup.

    >>> chart_text("<a href='x'>&lt;")
    "&lt;a href='x'>&amp;lt;"
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return printable.replace("&", "&amp;").replace("<", "&lt;")


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title; text of others in the title is the caller's to escape."""
    return {"title": {"text": title}, **more}


def finite(value: object) -> float | None:
    """A number that JSON can hold, else ``None``: records may hold NaN and anything else."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def band(curves: Iterable[dict[int, float]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Rounds with the mean, the smallest and the largest value of all curves that have the round."""
    gathered: dict[int, list[float]] = {}
    for curve in curves:
        for number, value in curve.items():
            gathered.setdefault(number, []).append(value)
    rounds = sorted(gathered)
    values = [gathered[number] for number in rounds]
    return rounds, [mean(v) for v in values], [min(v) for v in values], [max(v) for v in values]


def rounded(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Numbers as short as a screen needs them."""
    return [None if value is None else float(f"{value:.{digits}g}") for value in values]
