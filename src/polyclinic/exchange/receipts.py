"""Receipts: with every answer a site says how its audit log ends, and the coordinator keeps that.

Whoever changes a site's log later, the site's own people included, contradicts what the coordinator has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes

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
    receipt = _checked(given)
    if receipt is None or given.keys() != {"lines", "sha256"}:
        raise PolyclinicError("its receipt is not a number of lines and a SHA-256")
    return receipt


def read_receipts(path: Path) -> dict[str, list[Receipt]]:
    """The receipts that a coordinator has kept, by site and in their order; raises where a line is none."""
    receipts: dict[str, list[Receipt]] = {}
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):  # a kill may have cut the last line
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        receipt = _checked(entry)
        if receipt is None or not isinstance(entry.get("site"), str):
            raise PolyclinicError(f"{path}: line {number} is no receipt; give the receipts.jsonl of a run folder.")
        receipts.setdefault(entry["site"], []).append(receipt)
    return receipts


def receipts_problem(hashes: Sequence[str], receipts: Sequence[Receipt]) -> str | None:
    """Why a log is not the one that gave these receipts, or ``None``; ``hashes`` are those of its lines."""
    for receipt in receipts:
        if receipt.lines > len(hashes):
            return f"has {len(hashes)} lines and gave a receipt for line {receipt.lines}, so lines were taken out"
        if hashes[receipt.lines - 1] != receipt.sha256:
            return f"line {receipt.lines} is not the one that it gave a receipt for, so the log was changed"
    return None


def _checked(given: Any) -> Receipt | None:
    """A receipt from somebody who may have sent anything, or ``None``."""
    if not isinstance(given, dict):
        return None
    lines, sha256 = given.get("lines"), given.get("sha256")
    if type(lines) is not int or not 0 < lines < _MOST_LINES:  # a bool is an int too
        return None
    return Receipt(lines, sha256) if isinstance(sha256, str) and _HASH.fullmatch(sha256) else None
