"""What a site holds, summed up over its files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.federation import Item


@dataclass(frozen=True)
class SiteRow:
    """What one site holds, over its readable files. Sizes and spacings are the smallest and largest along each axis."""

    site: str
    images: int
    cases: int
    labelled: int
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None
    spacings: tuple[tuple[float, ...], tuple[float, ...]] | None
    classes: tuple[str, ...]
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None


@dataclass
class SiteTotals:
    """Running sums over the images of a site, so that no image stays in memory."""

    sizes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    classes: set[int] = field(default_factory=set)
    damaged_labels: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, array: NDArray[np.float32], spacing: tuple[float, ...] | None) -> None:
        """Count an image ``(channel, *spatial)``."""
        values = array.astype(np.float64)
        self.sizes.append(array.shape[1:])
        if spacing is not None:
            self.spacings.append(spacing)
        self.count += values.size
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))

    def row(self, site: str, items: tuple[Item, ...], classes: tuple[str, ...]) -> SiteRow:
        """The sums as a row; ``classes`` are the task's names."""
        mean = self.total / self.count if self.count else None
        std = math.sqrt(max(self.squares / self.count - mean**2, 0.0)) if mean is not None else None
        lowest, highest = (self.minimum, self.maximum) if self.count else (None, None)
        labelled = sum(item.label is not None for item in items)
        return SiteRow(
            site, len(items), len({item.case for item in items}), labelled, _range(self.sizes), _range(self.spacings),
            tuple(classes[value] for value in sorted(self.classes)), mean, std, lowest, highest,
        )  # fmt: skip


def _range(values: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Smallest and largest along each axis; None when there are none or they differ in rank."""
    if not values or len({len(value) for value in values}) > 1:
        return None
    return tuple(map(min, zip(*values, strict=True))), tuple(map(max, zip(*values, strict=True)))
