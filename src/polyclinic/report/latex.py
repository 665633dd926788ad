r"""The tables of a comparison in LaTeX: ``\input{table}`` in a document that uses booktabs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from polyclinic.core.wording import printable_line
from polyclinic.report.marks import Mark
from polyclinic.report.optimiser_steps import steps_words
from polyclinic.report.tables import Comparison

# What LaTeX reads as a command. A row that starts with [ or * would be an argument of the line break before it.
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "]": "{]}", "*": "{*}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}",
    "ø": r"\o{}", "Ø": r"\O{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}", "Ł": r"\L{}",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip


def latex_tables(tables: Sequence[Comparison]) -> str:
    """One table a metric."""
    head = "% Made by polyclinic compare. In the preamble: \\usepackage{booktabs}\n"
    return head + "\n".join(map(latex_table, tables))


def latex_table(table: Comparison) -> str:
    """Sites as columns, average, difference to the reference and p-value; best values bold, second ones underlined."""
    lines = [_line(list(map(latex_text, table.header)))]
    for row, marks in zip(table.rows(), table.marks(), strict=True):
        lines.append(
            _line([_cell(text, mark, place) for place, (text, mark) in enumerate(zip(row, marks, strict=True))])
        )
    header, *rows = lines
    body = "\n".join(rows)
    return f"""\\begin{{table}}
  \\centering
  \\small
  \\caption{{{latex_caption(_caption(table), steps_words(table.steps))}}}
  \\label{{tab:{re.sub("[^A-Za-z0-9]+", "-", table.metric)}}}
  \\begin{{tabular}}{{l{"r" * (len(table.header) - 1)}}}
    \\toprule
{header}
    \\midrule
{body}
    \\bottomrule
  \\end{{tabular}}
\\end{{table}}
"""


def latex_text(text: str) -> str:
    r"""A name that may hold anything, in plain ASCII that every LaTeX shows as it is.

    Letters that not every font has become their number: ``U+4E2D``.

    >>> print(latex_text("Zürich_50% [x]"))
    Z\"{u}rich\_50\% {[}x{]}
    """
    return "".join(map(_letter, unicodedata.normalize("NFC", printable_line(text))))


def latex_caption(*sentences: str) -> str:
    """Sentences of which some may be empty; each for itself, because long ones are cut."""
    return " ".join(latex_text(sentence) for sentence in sentences if sentence)


def _caption(table: Comparison) -> str:
    holm = ", Holm-corrected" if len(table.p_values) > 1 else ""
    p = f" p: Wilcoxon signed-rank test over cases{holm}." if table.p_values else ""
    marked = " Best in bold, second underlined." if any(any(marks) for marks in table.marks()) else ""
    return f"{table.caption}{marked}{p}"


def _line(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _cell(text: str, mark: Mark, place: int) -> str:
    if place and re.fullmatch(r"[+-]\d.*", text):
        return f"${text}$"  # a minus, not a hyphen
    return {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}[mark].format(latex_text(text))


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS:
        return f"\\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"U+{ord(letter):04X}"
