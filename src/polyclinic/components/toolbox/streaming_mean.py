"""A weighted mean of named tensors, one model at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyclinic.core.tensor_pieces import in_pieces
from polyclinic.exchange.messages import Tensors


class StreamingMean:
    """Accumulates ``sum_m a_m w_m`` in double precision and divides by ``sum_m a_m`` at the end.

    Memory is one model, whatever the number of sites; double precision makes the mean of equal models exactly that
    model. Integer tensors are never averaged: they are those of the site with the most samples (the first of equals),
    and so are floating buffers under the policy ``largest``.
    """

    def __init__(self, buffers: frozenset[str] = frozenset(), buffer_policy: str = "average") -> None:
        self._from_largest = buffers if buffer_policy == "largest" else frozenset()
        self._sums: Tensors = {}
        self._totals: dict[str, float] = {}
        self._copied: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._largest = -1

    def averages(self, name: str, tensor: Tensor) -> bool:
        """Whether this tensor is averaged; the others are copied from the site with the most samples."""
        return tensor.is_floating_point() and name not in self._from_largest

    def add(self, weights: Mapping[str, Tensor], weight: float | Mapping[str, float], samples: int) -> None:
        """Add one model; ``weight`` is a number, or a number by name (stage-wise aggregation)."""
        is_largest, self._largest = samples > self._largest, max(samples, self._largest)
        for name, tensor in weights.items():
            if not self.averages(name, tensor):
                if is_largest or name not in self._copied:
                    self._copied[name] = tensor.clone()
                continue
            share = weight if isinstance(weight, float | int) else weight[name]
            self._dtypes[name] = tensor.dtype
            if name not in self._sums:
                wide = tensor.to(torch.float64, memory_format=torch.contiguous_format, copy=True)
                self._sums[name] = wide.mul_(share)
            else:
                for total, piece in in_pieces(self._sums[name], tensor):
                    total.add_(piece, alpha=share)
            self._totals[name] = self._totals.get(name, 0.0) + share

    def result(self, previous: Mapping[str, Tensor]) -> Tensors:
        """The mean; names that no model brought, or whose weights sum to zero, keep their previous value."""
        result = dict(previous)
        for name, total in self._sums.items():
            if self._totals[name] > 0:
                result[name] = total.div(self._totals[name]).to(self._dtypes[name])
        return result | self._copied
