from __future__ import annotations

from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.receipts import Receipt, take_receipt, with_receipt

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
