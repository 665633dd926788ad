"""The in-process engine and a real Flower federation give the same weights, bit for bit.

``make test-engines`` does the same for every registered method.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyclinic[flower]'")

from agreement import Agreement

# All that a method can send or store, in two runs: all weights; then personal weights (local_norm), shared tensors
# (class_prototypes), site memory (model_contrast) and fgasl's own aggregation with its teachers at the same time.
METHODS = ("fedavg", "fgasl+local_norm+class_prototypes+model_contrast")


def test_engines_agree_bit_for_bit_on_everything_that_a_method_can_exchange(tmp_path: Path) -> None:
    with Agreement(tmp_path) as agreement:
        different = {method: agreement.difference(method) for method in METHODS}
    assert not any(different.values()), different
