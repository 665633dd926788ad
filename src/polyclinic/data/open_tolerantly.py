"""Open a federation as far as it goes: ``open_federation`` stops at the first fault, this notes it and goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item, Task, item_header
from polyclinic.data.federation_file import FederationFile, read_federation_file, read_valid_keys
from polyclinic.data.formats import Header, stem_of, suffix_of
from polyclinic.data.infer_task import declared_classes, dims_of
from polyclinic.data.layouts import ImageFiles, SiteFiles, find_site, looks_like_site
from polyclinic.data.manifest import ManifestRow, read_manifest
from polyclinic.data.open_federation import make_item, open_federation, site_folders, with_label_values
from polyclinic.data.problems import Problem, problem_of, relative
from polyclinic.recipe import DataSettings

ANY_CLASSES = ("background", *(f"class {value}" for value in range(1, 256)))
"""Stand for classes that nothing says, so that labels can be read: whoever shows them asks the labels first."""


def open_tolerantly(source: str | Path, settings: DataSettings) -> tuple[Federation, list[Problem]]:
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
    try:
        declared = read_federation_file(root / "federation.toml")
    except PolyclinicError as error:
        problems.append(problem_of(error, root))
        declared = read_valid_keys(root / "federation.toml")
    files: dict[str, SiteFiles] = {}
    for site, folder in sorted(site_folders(root).items()):
        if declared.sites is None or site in declared.sites:
            files[site], site_problems = _site(folder, root, declared)
            problems += site_problems
    images = {site: entry.images for site, entry in files.items() if entry.images}
    rows: dict[tuple[str, str], ManifestRow] = {}
    try:
        if (root / "manifest.csv").is_file():
            skipped = [p.name for p in root.iterdir() if p.name not in images]
            rows = read_manifest(root / "manifest.csv", images, skipped)
    except PolyclinicError as error:
        problems.append(problem_of(error, root))
    sites = {
        site: tuple(
            make_item(site, entry, rows.get((site, entry.name)), case_of=lambda name: name) for entry in entries
        )
        for site, entries in images.items()
    }
    task, sliced = _task(declared, files, sites)
    try:
        sites = with_label_values(sites, declared, task, root)
    except PolyclinicError as error:
        problems.append(problem_of(error, root))
    return Federation(declared.name or root.name, task, sites, root, sliced), problems


def _site(folder: Path, root: Path, declared: FederationFile) -> tuple[SiteFiles, list[Problem]]:
    """A site's files; of a plain site with faults, whatever has a known format and a partner."""
    try:
        known_classes, zero_fill = declared_classes(declared) is not None, declared.missing_channels == "zeros"
        return find_site(folder, not known_classes, zero_fill), []
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
    pairs = tuple(ImageFiles(stem, (path,), labels.get(stem)) for stem, path in sorted(images.items()))
    return SiteFiles(pairs), strays if first.file in {stray.file for stray in strays} else [first, *strays]


def _by_stem(folder: Path) -> dict[str, Path]:
    files = [p for p in folder.iterdir() if suffix_of(p) and not p.name.startswith(".")] if folder.is_dir() else []
    return {stem_of(path): path for path in sorted(files)}


def _task(
    declared: FederationFile, files: dict[str, SiteFiles], sites: dict[str, tuple[Item, ...]]
) -> tuple[Task, bool]:
    """The declared task; what it leaves out is what most images have. Undeclared classes may be any."""
    headers = [header for items in sites.values() for item in items if (header := _header(item)) is not None]
    ranks = Counter(map(dims_of, headers)) or Counter([2])
    dims = declared.spatial_dims or ranks.most_common(1)[0][0]
    channels = Counter(header.channels for header in headers) or Counter([1])
    known_classes = declared_classes(declared) or next(
        (entry.classes for entry in files.values() if entry.classes), None
    )
    task = Task(
        known_classes or ANY_CLASSES,
        declared.channels or channels.most_common(1)[0][0],
        dims,
        declared.modality,
        spacing=declared.spacing,
        zero_fill=declared.missing_channels == "zeros",
    )
    return task, dims == 2 and any(len(header.shape) == 3 for header in headers)


def _header(item: Item) -> Header | None:
    try:
        return item_header(item)
    except PolyclinicError:
        return None
