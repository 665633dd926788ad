"""Open a federation: find its sites, list their images, and settle the task; reads headers, not voxels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.wording import printable_line, reads_as_formula
from polyclinic.data.case_names import case_names
from polyclinic.data.federation import Federation, Item, Task, item_header
from polyclinic.data.federation_file import FederationFile, read_federation_file
from polyclinic.data.infer_task import declared_classes, task_of_files
from polyclinic.data.label_values import label_values
from polyclinic.data.layouts import ImageFiles, find_site, looks_like_site
from polyclinic.data.manifest import ManifestRow, read_manifest
from polyclinic.recipe import DataSettings

_DEFAULTS = DataSettings()


def open_federation(source: str | Path, settings: DataSettings = _DEFAULTS) -> Federation:
    """Open a federation's folder, or an embedded one named ``demo:NAME``; reads headers, not voxels.

    Only where no file declares the classes are they read from the labels.
    """
    root = _folder(source)
    declared = read_federation_file(root / "federation.toml")
    folders, left_out = _chosen_sites(*_declared_sites(root, declared), settings)
    known_classes, zero_fill = declared_classes(declared) is not None, declared.missing_channels == "zeros"
    files = {name: find_site(folders[name], not known_classes, zero_fill) for name in sorted(folders)}
    manifest = root / "manifest.csv"
    images = {site: entry.images for site, entry in files.items()}
    rows = read_manifest(manifest, images, left_out) if manifest.is_file() else {}
    known = {key for key, row in rows.items() if row.case}
    names = [entry.name for site, entries in images.items() for entry in entries if (site, entry.name) not in known]
    case_of = case_names(settings.case_pattern or declared.case_pattern, names).__getitem__
    sites = {
        site: tuple(make_item(site, entry, rows.get((site, entry.name)), case_of) for entry in entries)
        for site, entries in images.items()
    }
    _refuse_formulas(sites, root)
    headers = {site: item_header(items[0]) for site, items in sites.items()}
    task, sliced = task_of_files(root, declared, files, headers, settings)
    for name in task.judged:
        _refuse_formula("class or region", name, root)
    return Federation(declared.name or root.name, task, with_label_values(sites, declared, task, root), root, sliced)


def _refuse_formulas(sites: dict[str, tuple[Item, ...]], root: Path) -> None:
    for site, items in sites.items():
        _refuse_formula("site", site, root)
        for item in items:
            _refuse_formula("image", item.name, root / site)
            _refuse_formula("case", item.case, root / site)


def _refuse_formula(kind: str, name: str, where: Path) -> None:
    """Names stand in CSV files, which people open in spreadsheets."""
    if reads_as_formula(name):
        raise PolyclinicError(
            f"{where}: the {kind} '{printable_line(name)}' begins with '{name[0]}', which a spreadsheet takes for a "
            "formula in the tables of results; rename it."
        )


def with_label_values(
    sites: dict[str, tuple[Item, ...]], declared: FederationFile, task: Task, root: Path
) -> dict[str, tuple[Item, ...]]:
    """The sites' images, told what the values in their labels mean."""
    origin = f"{root / 'federation.toml'}: "
    tables = {site: (f"[site_labels.{site}]", table) for site, table in declared.site_labels.items()}
    values = {
        name: label_values(origin + key, table, task.classes)
        for name, (key, table) in {"": ("[labels]", declared.labels), **tables}.items()
    }
    return {
        site: tuple(replace(item, label_values=values.get(site, values[""])) for item in items)
        for site, items in sites.items()
    }


def _folder(source: str | Path) -> Path:
    text = str(source)
    if text.startswith("demo:"):
        from polyclinic.data.phantoms import demo_folder

        return demo_folder(text.removeprefix("demo:"))
    root = Path(text).expanduser()
    if not root.is_dir():
        raise PolyclinicError(f"{root}: no such folder; give a folder with one folder for each site, or 'demo:NAME'.")
    return root.resolve()


def site_folders(root: Path) -> dict[str, Path]:
    """The folders that may be sites, by name: neither hidden nor starting with an underscore."""
    return {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))}


def _declared_sites(root: Path, declared: FederationFile) -> tuple[dict[str, Path], list[str]]:
    """The folders that are sites, and the names of those that federation.toml leaves out."""
    folders = site_folders(root)
    if looks_like_site(root):
        raise PolyclinicError(
            f"{root}: is a single site; give the folder above it, which holds one folder for each site."
        )
    if not folders:
        raise PolyclinicError(
            f"{root}: holds no site; make a folder for each site, with its files in <site>/images and <site>/labels."
        )
    if declared.sites is None:
        return folders, []
    for name in declared.sites:
        if name not in folders:
            raise PolyclinicError(
                f"{root / 'federation.toml'}: 'sites' names '{name}', which has no folder; correct the name or add it."
            )
    return {name: folders[name] for name in declared.sites}, sorted(set(folders) - set(declared.sites))


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


def make_item(site: str, files: ImageFiles, row: ManifestRow | None, case_of: Callable[[str], str]) -> Item:
    """An image of a site; its case is the manifest's where there is one, else what ``case_of`` reads in its name."""
    row = row or ManifestRow(None, None)
    case = row.case or case_of(files.name)
    return Item(site, files.name, files.images, files.label, case, row.split, places=files.places)
