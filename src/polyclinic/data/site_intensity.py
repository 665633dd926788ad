"""Intensities by a site's own mean and deviation (``data.intensity = "site"``): how they are found, kept and applied.

The two numbers, or two of each channel, are those of all voxels of the site's training images, where a z-score would
be taken: after orientation and spacing, before ``data.crop`` and ``data.size``; with ``data.nonzero`` of the voxels
that are not 0. They never leave the site, and every image of the site, whatever its split, is scaled by them. Prepared
images lie in the cache as they were before, with their sums, so that parts of a protocol with other training images
share them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.recipe import DataSettings

INTENSITY_FILE = "intensity.json"
Moments = Sequence[Sequence[float]]
"""Of each channel of an image: the number of voxels that count, their sum, and the sum of their squares."""
_SAME = 1e-6  # relative; another version of a library may round sums in another way


@dataclass(frozen=True)
class SiteIntensity:
    """Mean and deviation of a site's images: one number each, or one of each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    nonzero: bool
    images: int
    """How many images they are of."""

    def scaled(self, voxels: Tensor, absent: Collection[int] = ()) -> Tensor:
        """Scale ``(channel, *spatial)``; the channels ``absent`` stay as they are."""
        mean, deviation = self.of_channels(len(voxels), absent)
        return standardised(voxels[None], mean[None], deviation[None], self.nonzero)[0]

    def of_channels(self, channels: int, absent: Collection[int] = (), repeats: int = 1) -> tuple[Tensor, Tensor]:
        """Mean and deviation of an image's channels, ``repeats`` times: neighbouring slices have the same."""
        each = channels // len(self.mean)
        mean, deviation = (torch.tensor(values * each) for values in (self.mean, self.deviation))
        for channel in absent:
            mean[channel], deviation[channel] = 0.0, 1.0
        return mean.repeat(repeats), deviation.repeat(repeats)

    def as_plain(self) -> dict[str, Any]:
        """As plain data for a file."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Any, origin: Path) -> SiteIntensity:
        """What ``as_plain`` gave, checked: it comes from a file."""
        try:
            found = cls(
                tuple(map(float, data["mean"])), tuple(map(float, data["deviation"])),
                bool(data["nonzero"]), int(data["images"]),
            )  # fmt: skip
            numbers = (*found.mean, *found.deviation)
            good = 0 < len(found.mean) == len(found.deviation) and all(map(math.isfinite, numbers))
            if not good or min(found.deviation) <= 0:
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PolyclinicError(
                f"{origin}: expected the mean and deviation of a site's images as lists of numbers; restore the file."
            ) from error
        return found

    def same_as(self, other: SiteIntensity) -> bool:
        """Whether both are the numbers of the same images."""
        if (self.nonzero, self.images, len(self.mean)) != (other.nonzero, other.images, len(other.mean)):
            return False
        pairs = zip(self.mean, other.mean, self.deviation, other.deviation, strict=True)
        return all(abs(m - n) <= _SAME * (abs(m) + d) and abs(d - e) <= _SAME * d for m, n, d, e in pairs)


@dataclass(frozen=True)
class SiteMoments:
    """The moments of a site's images by name, and how they become its intensity."""

    by_image: Mapping[str, Moments]
    settings: DataSettings

    def of(self, names: Collection[str]) -> SiteIntensity:
        """The intensity of these images."""
        return intensity_of((self.by_image[name] for name in names), self.settings)

    def absent(self, name: str) -> list[int]:
        """The channels of an image without a voxel that counts."""
        return [channel for channel, (count, *_) in enumerate(self.by_image[name]) if not count]


def moments_of(voxels: Tensor, nonzero: bool, absent: Collection[int] = ()) -> Moments:
    """Of an image ``(channel, *spatial)``, without the channels ``absent``."""
    found: list[tuple[float, float, float]] = []
    for number, channel in enumerate(voxels):
        values = channel.double()  # one channel at a time: it takes twice the memory
        count = int(values.count_nonzero()) if nonzero else values.numel()
        sums = float(values.sum()), float(values.square().sum())
        found.append((0.0, 0.0, 0.0) if number in absent or not count else (float(count), *sums))
    return found


def intensity_of(moments: Iterable[Moments], settings: DataSettings) -> SiteIntensity:
    """Mean and deviation over all voxels of images; the sums are exact, so that the order of images does not matter."""
    images = list(moments)
    channels = list(zip(*images, strict=True))  # of each channel, the three sums of every image
    groups = (
        [[row for channel in channels for row in channel]] if settings.intensity_statistics == "scalar" else channels
    )
    pairs = [_mean_and_deviation(rows) for rows in groups or [[]]]
    mean, deviation = zip(*pairs, strict=True)
    return SiteIntensity(mean, deviation, settings.nonzero, len(images))


def _mean_and_deviation(rows: Iterable[Sequence[float]]) -> tuple[float, float]:
    count, total, squares = (math.fsum(column) for column in zip((0.0, 0.0, 0.0), *rows, strict=True))
    if not count:
        return 0.0, 1.0
    mean = total / count
    variance = squares / count - mean**2
    # Rounding leaves a little of a constant's variance, which must not blow its noise up.
    return mean, math.sqrt(variance) if variance > 1e-12 * mean**2 else 1.0


def standardised(images: Tensor, mean: Tensor, deviation: Tensor, nonzero: bool) -> Tensor:
    """``(x - mean) / deviation`` for ``(batch, channel, *spatial)``, both ``(batch, channel)``; or 0 stays 0."""
    shape = (*mean.shape, *[1] * (images.dim() - 2))
    scaled = (images - mean.reshape(shape)) / deviation.reshape(shape)
    return torch.where(images != 0, scaled, 0.0) if nonzero else scaled


def read_intensity(folder: Path) -> SiteIntensity:
    """What a site has kept in its own folder."""
    file = folder / INTENSITY_FILE
    if not file.exists():
        raise PolyclinicError(
            f"{file}: is not there, and data.intensity = site; the site keeps it in its own run folder, link that here "
            "(docs/tutorials/first-federation.md), or leave --site out to use the images' own mean and deviation."
        )
    return SiteIntensity.from_plain(read_json(file), file)


def kept_intensity(folder: Path, found: SiteIntensity, fixed: bool) -> SiteIntensity:
    """Write what was found into a site's own folder, or give what is there, if it is the same.

    With ``fixed`` other numbers are an error: a run that has begun would go on with other images.
    """
    file = folder / INTENSITY_FILE
    if file.exists():
        kept = read_intensity(folder)
        if kept.same_as(found):
            return kept
        if fixed:
            raise PolyclinicError(
                f"{file}: the mean and deviation of the site's images have changed since this run started; restore the "
                "images, or start a new run in another folder with --out."
            )
    write_json(file, found.as_plain())
    return found
