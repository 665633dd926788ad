"""A federation: sites with their image files, and the task they share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.data.description import Description, read_description
from polyclinic.data.formats import Header, read_array, read_header
from polyclinic.data.layouts import ImageFiles, SiteFiles, find_site, looks_like_site
from polyclinic.data.manifest import Row, read_manifest
from polyclinic.recipe import DataSettings

_DEFAULTS = DataSettings()
_SLICE = re.compile(r"[_-](slice|s|z)\d+$")
_MOST_GUESSED_CLASSES = 32  # more distinct values than this are grey levels or instances, not classes


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
    """Unions of classes that are judged instead of single ones, by name: they may overlap, classes never do."""

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


@dataclass(frozen=True)
class Federation:
    """The sites, by name in sorted order, plus their task."""

    name: str
    task: Task
    sites: dict[str, tuple[Item, ...]]
    root: Path
    volumes_as_slices: bool = False


def open_federation(source: str | Path, settings: DataSettings = _DEFAULTS) -> Federation:
    """Open a federation's folder, or an embedded one named ``demo:NAME``; reads headers, not voxels.

    Only where no file declares the classes are they read from the labels.
    """
    root = _folder(source)
    description = read_description(root / "federation.toml")
    folders, left_out = _chosen_sites(*_site_folders(root, description), settings)
    files = {name: find_site(folders[name]) for name in sorted(folders)}
    manifest = root / "manifest.csv"
    found = {site: entry.found for site, entry in files.items()}
    rows = read_manifest(manifest, found, left_out) if manifest.is_file() else {}
    case_of = _case_rule(settings.case_pattern or description.case_pattern)
    sites = {site: tuple(_item(site, entry, rows, case_of) for entry in entries) for site, entries in found.items()}
    headers = {site: item_header(items[0]) for site, items in sites.items()}
    task, sliced = _task(root, description, files, headers, settings)
    return Federation(description.name or root.name, task, sites, root, sliced)


def item_header(item: Item) -> Header:
    """The header of an image, its channels summed over its files."""
    headers = [read_header(path) for path in item.images]
    return Header(headers[0].shape, sum(header.channels for header in headers), headers[0].affine)


def _folder(source: str | Path) -> Path:
    text = str(source)
    if text.startswith("demo:"):
        from polyclinic.data.phantoms import demo_folder

        return demo_folder(text.removeprefix("demo:"))
    root = Path(text).expanduser()
    if not root.is_dir():
        raise PolyclinicError(f"{root}: no such folder; give a folder with one folder for each site, or 'demo:NAME'.")
    return root.resolve()


def _site_folders(root: Path, description: Description) -> tuple[dict[str, Path], list[str]]:
    """The folders that are sites, and the names of those that federation.toml leaves out."""
    folders = {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))}
    if looks_like_site(root):
        raise PolyclinicError(
            f"{root}: is a single site; give the folder above it, which holds one folder for each site."
        )
    if not folders:
        raise PolyclinicError(
            f"{root}: holds no site; make a folder for each site, with its files in <site>/images and <site>/labels."
        )
    if description.sites is None:
        return folders, []
    for name in description.sites:
        if name not in folders:
            raise PolyclinicError(
                f"{root / 'federation.toml'}: 'sites' names '{name}', which has no folder; correct the name or add it."
            )
    return {name: folders[name] for name in description.sites}, sorted(set(folders) - set(description.sites))


def _chosen_sites(
    folders: dict[str, Path], left_out: list[str], settings: DataSettings
) -> tuple[dict[str, Path], list[str]]:
    """The sites that the recipe wants, and the names of all others."""
    if settings.sites is None:
        return folders, left_out
    for name in settings.sites:
        if name not in folders:
            known = ", ".join(sorted(folders))
            raise PolyclinicError(f"data.sites: no site '{name}'{suggestion(name, folders) or '.'} Sites: {known}.")
    chosen = {name: folder for name, folder in folders.items() if name in settings.sites}
    return chosen, sorted({*left_out, *folders} - set(chosen))


def _case_rule(pattern: str | None) -> Callable[[str], str]:
    """The case of an image's name: the pattern's first group, else the name without a slice number."""
    if pattern is None:
        return lambda name: _SLICE.sub("", name)
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise PolyclinicError(
            f"case_pattern: '{pattern}' is not a regular expression ({error}); correct it."
        ) from error
    if compiled.groups < 1:
        raise PolyclinicError(
            f"case_pattern: '{pattern}' has no group; put brackets around the part that names the case."
        )

    def case_of(name: str) -> str:
        match = compiled.search(name)
        if match is None or not match[1]:
            raise PolyclinicError(f"case_pattern: '{pattern}' does not match the image '{name}'; extend the pattern.")
        return match[1]

    return case_of


def _item(site: str, found: ImageFiles, rows: dict[tuple[str, str], Row], case_of: Callable[[str], str]) -> Item:
    row = rows.get((site, found.name), Row(None, None))
    return Item(site, found.name, found.images, found.label, row.case or case_of(found.name), row.split)


def _task(
    root: Path,
    description: Description,
    files: dict[str, SiteFiles],
    headers: dict[str, Header],
    settings: DataSettings,
) -> tuple[Task, bool]:
    """The task, declared or inferred, and whether volumes are cut into slices for it."""
    dims = description.spatial_dims or _infer_dims(root, headers)
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
    if description.spacing is not None and len(description.spacing) != rank:
        raise PolyclinicError(
            f"{root / 'federation.toml'}: 'spacing' has {len(description.spacing)} numbers, but the files have {rank} "
            "axes; give one for each."
        )
    channels = description.channels or next(iter(headers.values())).channels
    classes = description.classes or _infer_classes(root, files, settings.labelled is None)
    neighbours = settings.neighbours
    regions = _regions(root, description, classes)
    task = Task(
        classes, channels * (2 * neighbours + 1), dims, description.modality, neighbours, description.spacing, regions
    )
    return task, sliced


def _regions(root: Path, description: Description, classes: tuple[str, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The regions of ``federation.toml`` as numbers of foreground classes."""
    for name, members in description.regions.items():
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
    return tuple((name, tuple(map(classes.index, members))) for name, members in description.regions.items())


def _infer_dims(root: Path, headers: dict[str, Header]) -> int:
    # NIfTI has no honest 2D files: a third axis of length 1 is a 2D image.
    dims = {site: 2 if len(h.shape) == 2 or h.shape[2] == 1 else 3 for site, h in headers.items()}
    if len(set(dims.values())) > 1:
        two, three = (next(site for site in dims if dims[site] == value) for value in (2, 3))
        raise PolyclinicError(
            f"{root}: site '{two}' has 2D images and site '{three}' volumes; "
            "write spatial_dims = 2 in federation.toml to cut the volumes into slices."
        )
    return next(iter(dims.values()))


def _infer_classes(root: Path, files: dict[str, SiteFiles], may_read: bool) -> tuple[str, ...]:
    declared = {site: entry.classes for site, entry in files.items() if entry.classes is not None}
    if declared:
        first = next(iter(declared))
        for site, classes in declared.items():
            if classes != declared[first]:
                raise PolyclinicError(
                    f"{root}: the dataset.json of sites '{first}' and '{site}' declare different classes; "
                    "write 'classes' in federation.toml."
                )
        return declared[first]
    if not may_read:
        raise PolyclinicError(
            f"{root}: data.labelled allows few labels, and all would be read to find the classes; "
            "write 'classes' in federation.toml."
        )
    values = _label_values(entry.label for site in files.values() for entry in site.found)
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
