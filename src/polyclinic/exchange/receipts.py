"""Receipts: with every answer a site says how its audit log ends, and the coordinator keeps that.

Whoever changes a site's log later, the site's own people included, contradicts what the coordinator has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyclinic.core.errors import PolyclinicError

KEY = "receipt"
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_LINES = 2**53


@dataclass(frozen=True)
class Receipt:
    """Number of lines of a site's audit log after an answer's own, and SHA-256 of that line."""

    lines: int
    sha256: str


def with_receipt(about: Mapping[str, Any], receipt: Receipt) -> dict[str, Any]:
    """An answer's plain data with the receipt beside them."""
    return {**about, KEY: {"lines": receipt.lines, "sha256": receipt.sha256}}


def take_receipt(about: dict[str, Any]) -> Receipt | None:
    """Take the receipt off an answer's plain data; ``None`` where it has none, an error where it is something else."""
    if KEY not in about:
        return None
    given = about.pop(KEY)
    try:
        lines, sha256 = given["lines"], given["sha256"]
        valid = given.keys() == {"lines", "sha256"} and type(lines) is int and 0 < lines < _MOST_LINES
        if not valid or not _HASH.fullmatch(sha256):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PolyclinicError("its receipt is not a number of lines and a SHA-256") from None
    return Receipt(lines, sha256)
