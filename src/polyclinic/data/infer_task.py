"""The task of a federation: what ``federation.toml`` declares, and the rest from headers and, at most, labels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.data.federation import Task
from polyclinic.data.federation_file import FederationFile
from polyclinic.data.formats import Header, read_array
from polyclinic.data.layouts import SiteFiles
from polyclinic.recipe import DataSettings

_MOST_GUESSED_CLASSES = 32  # more distinct values than this are grey levels or instances, not classes


def task_of_files(
    root: Path,
    declared: FederationFile,
    files: dict[str, SiteFiles],
    headers: dict[str, Header],
    settings: DataSettings,
) -> tuple[Task, bool]:
    """The task, declared or inferred, and whether volumes are cut into slices for it."""
    dims = declared.spatial_dims or _infer_dims(root, headers)
    for site, header in headers.items():
        if len(header.shape) < dims:
            raise PolyclinicError(
                f"{root}: the task is 3D, but the images of site '{site}' are 2D; "
                "write spatial_dims = 2 in federation.toml."
            )
    sliced = dims == 2 and any(len(header.shape) == 3 for header in headers.values())
    if settings.neighbours and not sliced:
        raise PolyclinicError("data.neighbours: neighbouring slices exist only for a 2D task on volumes; set it to 0.")
    rank = max(len(header.shape) for header in headers.values())
    if declared.spacing is not None and len(declared.spacing) != rank:
        raise PolyclinicError(
            f"{root / 'federation.toml'}: 'spacing' has {len(declared.spacing)} numbers, but the files have {rank} "
            "axes; give one for each."
        )
    file_channels = declared.channels or _infer_channels(files, headers)
    classes = declared_classes(declared) or _infer_classes(root, files, settings.labelled is None)
    regions = _regions(root, declared, classes)
    channels = file_channels * (2 * settings.neighbours + 1)
    zero_fill = declared.missing_channels == "zeros"
    task = Task(classes, channels, dims, declared.modality, settings.neighbours, declared.spacing, regions, zero_fill)
    return task, sliced


def declared_classes(declared: FederationFile) -> tuple[str, ...] | None:
    """The classes of ``federation.toml``: its list, or the background and what ``[labels]`` names, in that order."""
    if declared.classes is not None or not declared.labels:
        return declared.classes
    return "background", *(name for name in declared.labels if name != "background")


def _infer_channels(files: dict[str, SiteFiles], headers: dict[str, Header]) -> int:
    """Those of the first site's first image; where channels may be missing, the highest number in a file's name."""
    highest = max((max(image.places) for site in files.values() for image in site.images if image.places), default=-1)
    return max(highest + 1, next(iter(headers.values())).channels)


def _regions(root: Path, declared: FederationFile, classes: tuple[str, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The regions of ``federation.toml`` as numbers of foreground classes."""
    for name, members in declared.regions.items():
        if len(set(members)) < len(members):
            raise PolyclinicError(
                f"{root / 'federation.toml'}: the region '{name}' names a class twice; write it once."
            )
        for member in members:
            if member not in classes[1:]:
                known = ", ".join(classes[1:])
                raise PolyclinicError(
                    f"{root / 'federation.toml'}: the region '{name}' names '{member}'"
                    f"{suggestion(member, classes[1:]) or f'; a region is made of the classes {known}.'}"
                )
    return tuple((name, tuple(map(classes.index, members))) for name, members in declared.regions.items())


def dims_of(header: Header) -> int:
    """2 or 3: NIfTI has no honest 2D files, so that a third axis of length 1 is a 2D image."""
    return 2 if len(header.shape) == 2 or header.shape[2] == 1 else 3


def _infer_dims(root: Path, headers: dict[str, Header]) -> int:
    dims = {site: dims_of(header) for site, header in headers.items()}
    if len(set(dims.values())) > 1:
        two, three = (next(site for site in dims if dims[site] == value) for value in (2, 3))
        raise PolyclinicError(
            f"{root}: site '{two}' has 2D images and site '{three}' volumes; "
            "write spatial_dims = 2 in federation.toml to cut the volumes into slices."
        )
    return next(iter(dims.values()))


def _infer_classes(root: Path, files: dict[str, SiteFiles], may_read: bool) -> tuple[str, ...]:
    by_site = {site: entry.classes for site, entry in files.items() if entry.classes is not None}
    if by_site:
        first = next(iter(by_site))
        for site, classes in by_site.items():
            if classes != by_site[first]:
                raise PolyclinicError(
                    f"{root}: the dataset.json of sites '{first}' and '{site}' declare different classes; "
                    "write 'classes' in federation.toml."
                )
        return by_site[first]
    if not may_read:
        raise PolyclinicError(
            f"{root}: data.labelled allows few labels, and all would be read to find the classes; "
            "write 'classes' in federation.toml."
        )
    values = _label_values(entry.label for site in files.values() for entry in site.images)
    if not values:
        raise PolyclinicError(
            f"{root}: no image has a label, so that the classes are unknown; write 'classes' in federation.toml."
        )
    highest = 1 if values <= {0, 255} else max(1, *values)
    if highest >= _MOST_GUESSED_CLASSES or min(values) < 0:
        raise PolyclinicError(
            f"{root}: the labels hold values up to {highest}, which do not look like classes 0, 1, 2 and so on; "
            "write 'classes' in federation.toml."
        )
    return ("background", *(f"class {value}" for value in range(1, highest + 1)))


def _label_values(labels: Iterable[Path | None]) -> set[int]:
    values: set[int] = set()
    for path in labels:
        if path is not None:
            values.update(int(value) for value in np.unique(read_array(path, label=True)))
    return values
