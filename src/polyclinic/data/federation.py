"""A federation: sites with their image files, and the task they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """What all sites agree on. ``classes`` includes the background at index 0."""

    classes: tuple[str, ...]
    channels: int
    spatial_dims: int
    modality: str = ""


@dataclass(frozen=True)
class Item:
    """One image of a site. Several files are the channels of one image (nnU-Net's ``_0000``)."""

    site: str
    name: str
    images: tuple[Path, ...]
    label: Path | None
    case: str
    split: str | None = None


@dataclass(frozen=True)
class Federation:
    """The sites, by name in sorted order, plus their task."""

    name: str
    task: Task
    sites: dict[str, tuple[Item, ...]]
    root: Path
