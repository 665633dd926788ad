"""The in-process engine and a real Flower federation give the same weights: one method of each kind.

``make test-engines`` does the same for every registered method.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyclinic[flower]'")

from agreement import Agreement

KINDS = {
    "plain": "fedavg",
    "personal weights": "fedbn",
    "shared tensors": "fedproto",
    "site memory": "moon",
    "own aggregation": "fgasl",
}


def test_engines_agree_bit_for_bit_for_one_method_of_each_kind(tmp_path: Path) -> None:
    with Agreement(tmp_path) as agreement:
        different = {kind: agreement.difference(method) for kind, method in KINDS.items()}
    assert not any(different.values()), different
