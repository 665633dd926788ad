"""Small networks with stages, and one stage of PathFL's equation 13 written out."""

from __future__ import annotations

from typing import Any

import numpy as np

NETWORKS: list[dict[str, Any]] = [
    {"width": 2, "depth": 2, "norm": "batch"},
    {"width": 4, "depth": 3, "norm": "group", "upsample": "linear"},
    {"width": 2, "depth": 1, "norm": "batch-nostats", "bias": False},
]


def stage_by_equation_13(models: np.ndarray, c: np.ndarray, reading: str, base: np.ndarray) -> float:
    """One stage of equation 13 written out; a model is one number."""
    count = len(models)
    everything = sum(c[a, b] for a in range(count) for b in range(count) if a != b)
    result = sum(base[m] * models[m] for m in range(count)) / 2
    for m in range(count):
        row = sum(c[m, k] for k in range(count) if k != m)
        for j in range(count):
            if j == m:
                continue
            if reading == "row":
                s = (c[m, j] / row if row > 0 else 1 / (count - 1)) / count
            else:
                s = c[m, j] / everything if everything > 0 else 1 / (count * (count - 1))
            result += s * models[j] / 2
    return float(result)
