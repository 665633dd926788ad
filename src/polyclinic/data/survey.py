"""Open a federation as far as it goes: ``open_federation`` stops at the first fault, this notes it and goes on."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.description import Description, read_description, salvage_description
from polyclinic.data.federation import Federation, Item, Task, item_header, open_federation
from polyclinic.data.formats import Header, stem_of, suffix_of
from polyclinic.data.layouts import ImageFiles, SiteFiles, find_site, looks_like_site
from polyclinic.data.manifest import Row, read_manifest
from polyclinic.recipe import DataSettings

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One fault. ``site`` and ``file`` (relative to the federation's folder) are empty where it has none."""

    severity: Severity
    site: str
    file: str
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def problem_of(error: PolyclinicError, root: Path, site: str = "") -> Problem:
    """Split an error's sentence into the file that it starts with and the rest."""
    path, colon, rest = str(error).partition(": ")
    if colon and Path(path).is_relative_to(root):
        return Problem("error", site, relative(Path(path), root), rest.replace(f"{root}{os.sep}", ""))
    return Problem("error", site, "", str(error))


def relative(path: Path, root: Path) -> str:
    """The path below the federation's folder, or the folder's own name."""
    return path.name if path == root else path.relative_to(root).as_posix()


def survey(source: str | Path, settings: DataSettings) -> tuple[Federation, list[Problem]]:
    """Open a federation, or as much of it as can be listed, with what kept the rest from opening.

    A source that is no folder with sites raises. In a federation that does not open, cases come from the manifest only.
    """
    try:
        return open_federation(source, settings), []
    except PolyclinicError as error:
        root = Path(source).expanduser().resolve()
        if not root.is_dir() or looks_like_site(root):
            raise
        federation, problems = _salvage(root)
        if not federation.sites:
            raise
        first = problem_of(error, root)
        # A damaged image or label is reported once more when its voxels are read; what is listed already is not new.
        known = {problem.file for problem in problems} | {
            relative(path, root)
            for items in federation.sites.values()
            for item in items
            for path in (*item.images, item.label)
            if path is not None
        }
        return federation, problems if first.file and first.file in known else [first, *problems]


def _salvage(root: Path) -> tuple[Federation, list[Problem]]:
    problems: list[Problem] = []
    description = Description()
    try:
        description = read_description(root / "federation.toml")
    except PolyclinicError as error:
        problems.append(problem_of(error, root))
        description = salvage_description(root / "federation.toml")
    files: dict[str, SiteFiles] = {}
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))):
        if description.sites is None or folder.name in description.sites:
            files[folder.name], own = _site(folder, root)
            problems += own
    found = {site: entry.found for site, entry in files.items() if entry.found}
    rows: dict[tuple[str, str], Row] = {}
    try:
        if (root / "manifest.csv").is_file():
            skipped = [p.name for p in root.iterdir() if p.name not in found]
            rows = read_manifest(root / "manifest.csv", found, skipped)
    except PolyclinicError as error:
        problems.append(problem_of(error, root))
    sites = {
        site: tuple(_item(site, entry, rows.get((site, entry.name), Row(None, None))) for entry in entries)
        for site, entries in found.items()
    }
    task, sliced = _task(description, files, sites)
    return Federation(description.name or root.name, task, sites, root, sliced), problems


def _item(site: str, found: ImageFiles, row: Row) -> Item:
    return Item(site, found.name, found.images, found.label, row.case or found.name, row.split)


def _site(folder: Path, root: Path) -> tuple[SiteFiles, list[Problem]]:
    """A site's files; of a plain site with faults, whatever has a known format and a partner."""
    try:
        return find_site(folder), []
    except PolyclinicError as error:
        first = problem_of(error, root, folder.name)
    if not (folder / "images").is_dir():
        return SiteFiles(()), [first]
    images, labels = (_by_stem(folder / name) for name in ("images", "labels"))
    strays = [
        Problem(
            "error", folder.name, relative(path, root), "label without an image; add the image or take the label out."
        )
        for stem, path in sorted(labels.items())
        if stem not in images
    ]
    found = tuple(ImageFiles(stem, (path,), labels.get(stem)) for stem, path in sorted(images.items()))
    return SiteFiles(found), strays if first.file in {stray.file for stray in strays} else [first, *strays]


def _by_stem(folder: Path) -> dict[str, Path]:
    files = [p for p in folder.iterdir() if suffix_of(p) and not p.name.startswith(".")] if folder.is_dir() else []
    return {stem_of(path): path for path in sorted(files)}


def _task(
    description: Description, files: dict[str, SiteFiles], sites: dict[str, tuple[Item, ...]]
) -> tuple[Task, bool]:
    """The declared task; what it leaves out is what most images have. Undeclared classes may be any."""
    headers = [header for items in sites.values() for item in items if (header := _header(item)) is not None]
    shapes = Counter(2 if len(h.shape) == 2 or h.shape[2] == 1 else 3 for h in headers) or Counter([2])
    dims = description.spatial_dims or shapes.most_common(1)[0][0]
    channels = Counter(header.channels for header in headers) or Counter([1])
    declared = description.classes or next((entry.classes for entry in files.values() if entry.classes), None)
    classes = declared or ("background", *(f"class {value}" for value in range(1, 256)))
    task = Task(
        classes,
        description.channels or channels.most_common(1)[0][0],
        dims,
        description.modality,
        spacing=description.spacing,
    )
    return task, dims == 2 and any(len(header.shape) == 3 for header in headers)


def _header(item: Item) -> Header | None:
    try:
        return item_header(item)
    except PolyclinicError:
        return None
