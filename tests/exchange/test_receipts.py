from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.receipts import Receipt, read_receipts, receipts_problem, take_receipt, with_receipt

HASH = "0f" * 32


def test_a_receipt_goes_beside_the_answer_and_is_taken_off() -> None:
    about = with_receipt({"kind": "Failure"}, Receipt(3, HASH))
    assert about == {"kind": "Failure", "receipt": {"lines": 3, "sha256": HASH}}
    assert take_receipt(about) == Receipt(3, HASH)
    assert about == {"kind": "Failure"}
    assert take_receipt(about) is None


@pytest.mark.parametrize(
    "given",
    [
        None, 5, "x", [], {}, {"lines": 3}, {"lines": True, "sha256": HASH}, {"lines": 0, "sha256": HASH},
        {"lines": -1, "sha256": HASH}, {"lines": 1.0, "sha256": HASH}, {"lines": 2**60, "sha256": HASH},
        {"lines": 3, "sha256": HASH.upper()}, {"lines": 3, "sha256": HASH + "\n"}, {"lines": 3, "sha256": 7},
        {"lines": 3, "sha256": HASH, "more": 1},
    ],
)  # fmt: skip
def test_what_is_no_receipt_is_an_error(given: Any) -> None:
    with pytest.raises(PolyclinicError, match="its receipt is not"):
        take_receipt({"receipt": given})


def test_receipts_are_read_by_site_and_half_a_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    lines = [json.dumps({"time": "now", "site": site, "lines": n, "sha256": HASH}) for n, site in ((1, "a"), (2, "b"))]
    file.write_text("\n".join([*lines, lines[0][:20]]))
    assert read_receipts(file) == {"a": [Receipt(1, HASH)], "b": [Receipt(2, HASH)]}


@pytest.mark.parametrize("line", ["", "{", "[]", '{"site": "a"}', '{"site": 5, "lines": 1, "sha256": "' + HASH + '"}'])
def test_a_file_of_something_else_gets_a_sentence(line: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(f"{line}\n")
    with pytest.raises(PolyclinicError, match="line 1 is no receipt"):
        read_receipts(tmp_path / "x")


def test_a_log_that_is_not_the_one_of_the_receipts_is_found() -> None:
    hashes = ["aa" * 32, "bb" * 32, "cc" * 32]
    assert receipts_problem(hashes, [Receipt(1, hashes[0]), Receipt(3, hashes[2])]) is None
    assert "gave a receipt for line 3" in str(receipts_problem(hashes[:2], [Receipt(3, hashes[2])]))
    assert "line 2 is not the one" in str(receipts_problem(hashes, [Receipt(2, HASH)]))
