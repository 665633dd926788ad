"""What kind of federation this is, in a few numbers: what a choice of method and settings can be made by."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Literal

from polyclinic.data.check import CheckReport
from polyclinic.data.formats.registry import is_picture

Polarity = Literal["brighter", "darker", "mixed", "unclear"]
Shift = Literal["none", "mild", "clear", "strong"]
_SHIFTS: tuple[tuple[float, Shift], ...] = ((0.3, "none"), (0.75, "mild"), (1.3, "clear"))
"""The style shift below which a word holds. Of eight real federations one scanner in three units has 0.2, hospitals
with one modality 0.4 to 0.6, cameras of several makers 1.1, mixed modalities 1.5 and 1.8, though 0.5 in volumes."""
_CONTRAST = 0.5  # deviations of an image by which foreground must differ from background to be brighter or darker
_THIN = {2: 6.0, 3: 3.0}
"""Pixels. Vessels of retinal images have 2 to 3, nuclei 7 to 23, a left ventricle 20 to 27. A compact structure has
less of them in 3D: the hippocampus 5, zones of the prostate 10."""


@dataclass(frozen=True)
class FederationTraits:
    """A federation in a few numbers, from ``check_federation``; ``None`` is what no label or too few images tell."""

    sites: int
    smallest_site: int
    largest_site: int
    """Images of the smallest and of the largest site."""
    labelled: float
    """Share of the images that have a label."""
    dims: int
    """2 or 3; 2 also for slices of volumes."""
    classes: int
    """Foreground classes."""
    foreground: float | None
    """Share of foreground, mean over sites."""
    width: float | None
    """How wide structures are, in pixels, mean over sites."""
    shift: float | None
    """How far apart the sites' images look (``style_shift``)."""
    polarity: Polarity
    """Whether foreground is brighter or darker than its surroundings: at all sites the same, mixed, or neither."""
    size: tuple[int, ...] | None
    """The largest image, or slice, along each axis; ``None`` where images differ in their number of axes."""
    anisotropy: float
    """The largest spacing over the smallest, at the site where that is most; 1 without spacings."""
    middle: tuple[int, ...] | None = None
    """How much of the middle of an image holds its structures, for 19 in 20 labels of every site."""
    pictures: bool = False
    """Whether all files are pictures, whose bytes have a range of their own."""

    @classmethod
    def of(cls, report: CheckReport) -> FederationTraits:
        """The traits of a federation that was checked."""
        rows, task = report.rows, report.federation.task
        counts = [row.images for row in rows]
        sizes = [_plane(row.sizes[1], report.slice_axis) for row in rows if row.sizes is not None]
        spacings = [row.spacings[1] for row in rows if row.spacings is not None]
        return cls(
            sites=len(rows),
            smallest_site=min(counts),
            largest_site=max(counts),
            labelled=sum(row.labelled for row in rows) / max(sum(counts), 1),
            dims=task.spatial_dims,
            classes=len(task.classes) - 1,
            foreground=_mean([row.foreground for row in rows]),
            width=_mean([row.width for row in rows]),
            shift=report.shift,
            polarity=polarity_of([row.contrast for row in rows if row.contrast is not None]),
            size=_largest(sizes),
            anisotropy=max((max(axes) / min(axes) for axes in spacings if min(axes) > 0), default=1.0),
            middle=_largest([row.middle for row in rows if row.middle is not None]),
            pictures=all(
                is_picture(path) for items in report.federation.sites.values() for item in items for path in item.images
            ),
        )

    @property
    def shift_word(self) -> Shift | None:
        """The shift in a word."""
        if self.shift is None:
            return None
        return next((word for below, word in _SHIFTS if self.shift < below), "strong")

    @property
    def is_thin(self) -> bool:
        """Whether structures are so narrow that they vanish when images are made small."""
        return self.width is not None and self.width < _THIN[self.dims]


def polarity_of(contrasts: list[float]) -> Polarity:
    """What the sites' contrasts say together.

    >>> polarity_of([1.2, 0.9]), polarity_of([1.2, -0.9]), polarity_of([0.1, -0.2])
    ('brighter', 'mixed', 'unclear')
    """
    brighter, darker = any(c > _CONTRAST for c in contrasts), any(c < -_CONTRAST for c in contrasts)
    if brighter and darker:
        return "mixed"
    return "brighter" if brighter else "darker" if darker else "unclear"


def _plane(size: tuple[int, ...], slice_axis: int | None) -> tuple[int, ...]:
    if slice_axis is None or len(size) < 3:
        return size
    return tuple(axis for number, axis in enumerate(size) if number != slice_axis % len(size))


def _largest(sizes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    return tuple(map(max, zip(*sizes, strict=True))) if sizes and len(set(map(len, sizes))) == 1 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
