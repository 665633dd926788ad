"""Errors that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolyclinicError(Exception):
    """One sentence: which file or key, what was expected, what to do. The command line prints it and exits with 2."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` when a known word is close to ``word``, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean '{close[0]}'?" if close else ""
