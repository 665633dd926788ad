"""What a site holds, summed up over its files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.federation import Item

MEASURED_WIDTHS = 20  # labels of a site, because distances in large volumes take a second each
_QUANTILE_VOXELS = 200_000


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
    foreground: float | None = None
    """Share of foreground in the labels, mean over images."""
    width: float | None = None
    """How wide foreground structures are, in pixels, mean over up to ``MEASURED_WIDTHS`` labels."""
    contrast: float | None = None
    """Foreground's mean intensity minus background's, in deviations of the image; mean over images."""
    middle: tuple[int, ...] | None = None
    """How much of the middle of an image holds its foreground, in pixels of each axis, for 19 in 20 labels."""


@dataclass
class SiteTotals:
    """Running sums over the images of a site, so that no image stays in memory."""

    slice_axis: int | None = None
    """Volumes are cut into slices along this axis, and widths and middles are those of slices."""
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    classes: set[int] = field(default_factory=set)
    damaged_labels: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    profiles: list[NDArray[np.float64]] = field(default_factory=list)
    foregrounds: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    contrasts: list[float] = field(default_factory=list)
    middles: list[tuple[int, ...]] = field(default_factory=list)

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
        self.profiles.append(intensity_profile(values))

    def add_label(self, label: NDArray[np.integer[Any]], image: NDArray[np.float32] | None) -> None:
        """Count a label ``(*spatial)`` and its image ``(channel, *spatial)``, if that can be read."""
        self.classes.update(np.unique(label).tolist())
        mask = label > 0
        self.foregrounds.append(float(mask.mean()))
        if not mask.any() or mask.all():
            return
        flat = self.slice_axis is None or mask.ndim < 3
        planes = mask[None] if flat else np.moveaxis(mask, self.slice_axis or 0, 0)
        self.middles.append(middle_of(np.asarray(planes.any(0))))
        if len(self.widths) < MEASURED_WIDTHS:
            widths = [structure_width(plane) for plane in planes if plane.any() and not plane.all()]
            self.widths += [float(np.mean(widths))] if widths else []
        if image is not None and (deviation := float(image.std())) > 0:
            inside, outside = float(image[:, mask].mean()), float(image[:, ~mask].mean())
            self.contrasts.append((inside - outside) / deviation)

    def row(self, site: str, items: tuple[Item, ...], classes: tuple[str, ...]) -> SiteRow:
        """The sums as a row; ``classes`` are the task's names."""
        mean = self.total / self.count if self.count else None
        std = math.sqrt(max(self.squares / self.count - mean**2, 0.0)) if mean is not None else None
        lowest, highest = (self.minimum, self.maximum) if self.count else (None, None)
        labelled = sum(item.label is not None for item in items)
        return SiteRow(
            site, len(items), len({item.case for item in items}), labelled, _range(self.sizes), _range(self.spacings),
            tuple(classes[value] for value in sorted(self.classes)), mean, std, lowest, highest,
            _mean(self.foregrounds), _mean(self.widths), _mean(self.contrasts), _nearly_all(self.middles),
        )  # fmt: skip


def intensity_profile(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ten quantiles of an image ``(channel, *spatial)`` and the means of its channels, in deviations of the image.

    A scanner's factor and offset leave it as it is, so that what differs between profiles is what a network sees.
    """
    scaled = (image - image.mean()) / (float(image.std()) or 1.0)
    # Every few voxels of a volume: sorting all of them would take longer than reading them.
    some = scaled.ravel()[:: max(1, scaled.size // _QUANTILE_VOXELS)]
    quantiles = np.percentile(some, np.linspace(5, 95, 10))
    return np.concatenate([quantiles, scaled.reshape(len(scaled), -1).mean(1)])


def style_shift(sites: Iterable[SiteTotals]) -> float | None:
    """How far apart the sites' images look: deviation of profiles between sites over that within them.

    About 0 where all sites draw from the same images, above 1 where the sites differ more than the images of one. None
    with fewer than two sites that have two images each, or where all images look the same.
    """
    profiles = [np.stack(site.profiles) for site in sites if len(site.profiles) > 1]
    if len(profiles) < 2:
        return None
    between = np.var([own.mean(0) for own in profiles], axis=0).sum()
    within = np.mean([own.var(0) for own in profiles], axis=0).sum()
    return float(np.sqrt(between / within)) if within > 0 else None


def structure_width(mask: NDArray[np.bool_]) -> float:
    """How wide the structures of a mask ``(*spatial)`` are, in pixels: 4 times the mean distance to their edge.

    That is the width of a strip. A disc of radius ``r`` has ``4 r / 3``, a ball ``r``.

    >>> strip = np.zeros((32, 32), bool)
    >>> strip[:, 10:18] = True
    >>> structure_width(strip)
    8.0
    """
    from scipy.ndimage import distance_transform_edt

    # The edge lies half a pixel before the next background pixel, which distances are to.
    return float(4 * (distance_transform_edt(mask)[mask] - 0.5).mean())


def middle_of(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """How many pixels of the middle, along each axis of a mask ``(*spatial)`` with foreground, hold all of it.

    >>> mask = np.zeros((10, 9), bool)
    >>> mask[5:7, 4] = True
    >>> middle_of(mask)
    (4, 1)
    """
    sizes = []
    for axis, size in enumerate(mask.shape):
        (places,) = np.nonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        sizes.append(int(max(size - 2 * places[0], 2 * (places[-1] + 1) - size)))
    return tuple(sizes)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _nearly_all(middles: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    if not middles or len(set(map(len, middles))) > 1:
        return None
    return tuple(int(size) for size in np.quantile(middles, 0.95, axis=0, method="inverted_cdf"))


def _range(values: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Smallest and largest along each axis; None when there are none or they differ in rank."""
    if not values or len({len(value) for value in values}) > 1:
        return None
    return tuple(map(min, zip(*values, strict=True))), tuple(map(max, zip(*values, strict=True)))
