"""The best and the second value of a column, and how a terminal, Markdown and LaTeX show them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from polyclinic.core.wording import printable_line
from polyclinic.evaluation.metric_registry import known_metrics

Mark = Literal["", "best", "second"]
STYLES: dict[Mark, str] = {"": "", "best": "bold", "second": "underline"}
"""Styles of rich."""


def best_and_second(values: Mapping[str, float | None], metric: str) -> dict[str, Mark]:
    """The mark of each method's value.

    Values that look equal in a table share a mark. None has one where nobody knows which direction is better, or all
    look equal; a second is marked from three methods on.
    """
    entry = known_metrics().get(metric.split("/")[0])
    known = {name: value for name, value in values.items() if value is not None}
    if entry is None:
        return dict.fromkeys(values, "")
    shown = {name: round(value * entry.scale, 2) for name, value in known.items()}
    places = sorted(set(shown.values()), reverse=entry.better == "higher")
    best, second = places[:1], places[1:2] if len(known) > 2 else []
    marks: dict[str, Mark] = dict.fromkeys(values, "")
    for name, value in shown.items():
        if len(places) > 1:
            marks[name] = "best" if value in best else "second" if value in second else ""
    return marks


def markdown_cell(text: str, mark: Mark) -> str:
    """A cell with its mark; Markdown itself has no underline."""
    return {"": text, "best": f"**{text}**", "second": f"<ins>{text}</ins>"}[mark]


def markdown_text(text: str) -> str:
    """A name or sentence that may hold anything, as one line of Markdown that shows it as it is.

    >>> print(markdown_text("a<b>*x* [me](http://x) mean_teacher _x_ p < 0.05"))
    a&lt;b>\\*x\\* [me\\](http://x) mean_teacher \\_x\\_ p < 0.05
    """
    line = printable_line(text).replace("\\", "\\\\").replace("&", "&amp;")
    line = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", line)
    line = re.sub(r"[`*~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", line)
    return re.sub(r"^\[|\](?=[(\[])", r"\\\g<0>", line)  # links, and what defines one at the start of a line
