"""FedBCS's multi-level embedding (eqs. 9-12) without ever forming it.

A stream has levels ``f_0`` (fine) to ``f_L`` (coarse). Slot ``k`` fuses level ``k`` with its context by a 1x1
convolution, ``t_k = A_k f_k + B_k up(context) + b_k``, and the embedding of a pixel is the concatenation of all slots,
each brought to the stream's grid by nearest neighbour. Everything that the losses need of it is linear or quadratic:

- ``e . q = sum_k [f_k . (A_k^T q_k) + up(context . (B_k^T q_k)) + b_k . q_k]``: raw features meet small vectors;
- ``|e|^2 = sum_k |t_k|^2``, a quadratic form with the Gram matrices of ``A_k`` and ``B_k``;
- a class mean of ``e`` is the same linear map of the class means of the features, so fusing per pixel and averaging
  (the released code) equals averaging and fusing (the paper).

So only a few scalar maps are upsampled. Resampling is by index, which is exact for sizes that do not divide, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.components.toolbox.prototypes.grids import Lift, Size, resize_labels

ContextRule = Literal["adjacent", "deepest"]


class Fusion(nn.ModuleList):
    """The 1x1 convolutions of one stream (eq. 11), slot ``k`` on the channels of level ``k`` and of its context."""

    def __init__(self, widths: Sequence[int], channels: int, context: ContextRule) -> None:
        self.contexts = [level + 1 if context == "adjacent" else len(widths) - 1 for level in range(len(widths) - 1)]
        self.own_widths = list(widths[:-1])
        pairs = ((widths[level], widths[deeper]) for level, deeper in enumerate(self.contexts))
        super().__init__(nn.Linear(own + deeper, channels) for own, deeper in pairs)
        self.channels = channels


class Slot:
    """One level fused with its context, seen from the stream's grid."""

    def __init__(self, level: Tensor, context: Tensor, linear: nn.Linear, grid: Size) -> None:
        a, b = torch.split(linear.weight.float(), [level.shape[1], context.shape[1]], dim=1)
        self.a, self.b, self.bias = a, b, linear.bias.float()
        size, deeper = tuple(level.shape[2:]), tuple(context.shape[2:])
        to_grid, to_level = Lift.between(size, grid), Lift.between(deeper, size)
        # A level that is finer than the grid is sampled first, a coarser one is worked on as it is and lifted after.
        if _positions(size) >= _positions(grid):
            level, to_level, to_grid = to_grid(level), to_level.then(to_grid), Lift.between(grid, grid)
        if _positions(deeper) >= _positions(to_level.target):
            context, to_level = to_level(context), Lift.between(to_level.target, to_level.target)
        self.level, self.context, self.to_level, self.to_grid = level.float(), context.float(), to_level, to_grid

    def compare(self, vectors: Tensor) -> Tensor:
        """Inner products with ``(vectors, channels)`` and, last, squared norms: ``(b, vectors + 1, *grid)``."""
        coarse = torch.cat([_mix(self.context, vectors @ self.b), self._squares(self.context, self.b)], dim=1)
        cross = 2 * self.to_level(_mix(self.context, self.a.T @ self.b)) + _mix(self.level, self._gram(self.a))
        squares = (self.level * (cross + _column(2 * self.bias @ self.a, self.level))).sum(1, keepdim=True)
        fine = torch.cat([_mix(self.level, vectors @ self.a), squares], dim=1) + self.to_level(coarse)
        constants = torch.cat([vectors @ self.bias, self.bias.square().sum(0, keepdim=True)])
        return self.to_grid(fine + _column(constants, fine))

    def _squares(self, maps: Tensor, weight: Tensor) -> Tensor:
        """``|W x|^2 + 2 b . W x`` of ``(b, c, *spatial)`` as ``(b, 1, *spatial)``."""
        return (maps * (_mix(maps, self._gram(weight)) + _column(2 * self.bias @ weight, maps))).sum(1, keepdim=True)

    @staticmethod
    def _gram(weight: Tensor) -> Tensor:
        return weight.T @ weight

    def class_sums(self, onehot: Tensor, counts: Tensor) -> Tensor:
        """Sums ``(class, channels)`` over pixels of ``onehot`` ``(b, class, *grid)`` with ``counts`` ``(class,)``."""
        weights = self.to_grid.gather_back(onehot)
        level_sums = torch.einsum("bkn,bcn->kc", weights.flatten(2), self.level.flatten(2))
        weights = self.to_level.gather_back(weights)
        context_sums = torch.einsum("bkn,bcn->kc", weights.flatten(2), self.context.flatten(2))
        return level_sums @ self.a.T + context_sums @ self.b.T + counts[:, None] * self.bias


class PyramidView:
    """A stream's pixels on a grid ``stride`` times coarser than the labels; a ``View`` of ``slots * channels``."""

    def __init__(self, levels: Sequence[Tensor], fusion: Fusion, labels: Tensor, stride: int) -> None:
        grid = tuple(max(1, size // stride) for size in labels.shape[1:])
        slots = enumerate(zip(fusion, fusion.contexts, strict=True))
        self.slots = [Slot(levels[k], levels[deeper], cast(nn.Linear, linear), grid) for k, (linear, deeper) in slots]
        self.channels = fusion.channels * len(self.slots)
        self._labels = resize_labels(labels, grid).long()
        self.labels = self._labels.flatten()
        self.weights: Tensor | None = None

    def compare(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products ``(n, vectors)`` and squared norms ``(n,)``."""
        parts = vectors.chunk(len(self.slots), dim=1)
        maps = torch.stack([slot.compare(part) for slot, part in zip(self.slots, parts, strict=True)]).sum(0)
        rows = maps.flatten(2).transpose(1, 2).flatten(0, 1)
        return rows[:, :-1], rows[:, -1]

    def class_sums(self, classes: int) -> tuple[Tensor, Tensor]:
        """Sums ``(class, channels)`` and counts ``(class,)``."""
        onehot = F.one_hot(self._labels, classes).movedim(-1, 1)
        counts = onehot.flatten(2).sum((0, 2))
        weights = onehot.to(self.slots[0].level.dtype)
        return torch.cat([slot.class_sums(weights, counts.to(weights.dtype)) for slot in self.slots], dim=1), counts

    def image_counts(self, classes: int) -> Tensor:
        """Pixels of each class in each image ``(batch, class)``."""
        return F.one_hot(self._labels.flatten(1), classes).sum(1)


def _positions(size: Size) -> int:
    return int(torch.Size(size).numel())


def _mix(maps: Tensor, matrix: Tensor) -> Tensor:
    """``matrix`` ``(out, c)`` on the channels of ``(b, c, *spatial)``."""
    return (matrix @ maps.flatten(2)).reshape(len(maps), len(matrix), *maps.shape[2:])


def _column(values: Tensor, maps: Tensor) -> Tensor:
    """``(c,)`` shaped to be added to ``(b, c, *spatial)``."""
    return values.reshape(-1, *[1] * (maps.dim() - 2))
