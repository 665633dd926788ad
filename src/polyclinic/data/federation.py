"""What a federation is: its sites with their image files, and the task they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from polyclinic.data.formats import Header, read_header
from polyclinic.data.label_values import LabelValues

if TYPE_CHECKING:  # it needs PyTorch, and a look at a federation's headers does not
    from polyclinic.data.site_intensity import SiteIntensity


@dataclass(frozen=True)
class Task:
    """What all sites agree on. ``classes`` includes the background at index 0.

    ``channels`` is what the network sees: for a 2D task on volumes it counts the neighbouring slices too.
    ``spacing`` is nominal, in millimetres along each axis of a file, for files that do not know their own.
    """

    classes: tuple[str, ...]
    channels: int
    spatial_dims: int
    modality: str = ""
    neighbours: int = 0
    spacing: tuple[float, ...] | None = None
    regions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Unions of classes that are judged instead of single ones, by name: they may overlap, classes never do.

    How a prediction of one is made is ``evaluation.regions`` of the recipe.
    """
    zero_fill: bool = False
    """Whether a channel without a file is zeros, and no error."""

    @property
    def judged(self) -> dict[str, tuple[int, ...]]:
        """What metrics are about, by name: the numbers of its classes. Every foreground class unless there are regions.

        >>> Task(("background", "white", "grey"), 1, 2, regions=(("cord", (1, 2)), ("grey", (2,)))).judged
        {'cord': (1, 2), 'grey': (2,)}
        """
        return dict(self.regions) or {name: (number,) for number, name in enumerate(self.classes) if number}

    @property
    def image_channels(self) -> int:
        """The channels of a file, without neighbouring slices."""
        return self.channels // (2 * self.neighbours + 1)

    def nominal_spacing(self, rank: int) -> tuple[float, ...] | None:
        """The nominal spacing of files with ``rank`` axes; it says nothing of files with more or fewer."""
        return self.spacing if self.spacing is not None and len(self.spacing) == rank else None


@dataclass(frozen=True)
class Item:
    """One image of a site. Several files are the channels of one image (nnU-Net's ``_0000``)."""

    site: str
    name: str
    images: tuple[Path, ...]
    label: Path | None
    case: str
    split: str | None = None
    labelled_slices: tuple[int, ...] | None = None
    """The slices of a volume whose label may be used; all by default."""
    places: tuple[int, ...] = ()
    """Which channel each file is, where some may be missing; by default they are all there, in their order."""
    label_values: LabelValues | None = None
    """What the values in the label's file mean; by default they are the classes themselves."""


@dataclass(frozen=True)
class Federation:
    """The sites, by name in sorted order, plus their task."""

    name: str
    task: Task
    sites: dict[str, tuple[Item, ...]]
    root: Path
    volumes_as_slices: bool = False
    intensity: Mapping[str, SiteIntensity] = field(default_factory=dict)
    """With ``data.intensity = "site"``: the numbers of sites, where they are known before images are prepared."""


def item_header(item: Item) -> Header:
    """The header of an image, its channels summed over its files; those before the last file's may be missing."""
    headers = [read_header(path) for path in item.images]
    channels = max(item.places) + 1 if item.places else sum(header.channels for header in headers)
    return Header(headers[0].shape, channels, headers[0].affine)
