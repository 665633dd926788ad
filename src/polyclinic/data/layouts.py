"""The files of one site, in any of three layouts: plain, nnU-Net, Medical Segmentation Decathlon.

==========  ====================================================  =====================================
plain       ``images/<name>.*``                                   ``labels/<name>.*``
nnU-Net     ``imagesTr/<name>_0000.*``, ``_0001``: channels       ``labelsTr/<name>.*``, ``dataset.json``
Decathlon   ``imagesTr/<name>.nii.gz``, channels on a 4th axis    ``dataset.json``'s ``training`` list
==========  ====================================================  =====================================

The test images of the last two (``imagesTs``) have no labels by design and are left alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.formats import SUFFIXES, stem_of, suffix_of

CHANNEL_NAME = re.compile(r"(.+)_(\d{4})")
"""nnU-Net's name of one channel of an image: the image's name, and the number of the channel."""
_CLUTTER = ("thumbs.db", "desktop.ini")


@dataclass(frozen=True)
class ImageFiles:
    """One image of a site: its name, the files of its channels, and its label if it has one.

    ``places`` are the channels that the files are, where some may be missing.
    """

    name: str
    images: tuple[Path, ...]
    label: Path | None
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class SiteFiles:
    """The images of a site by name, and the classes that its ``dataset.json`` declares, if any."""

    images: tuple[ImageFiles, ...]
    classes: tuple[str, ...] | None = None


def looks_like_site(folder: Path) -> bool:
    """Whether a folder holds images in one of the layouts."""
    return (folder / "images").is_dir() or (folder / "imagesTr").is_dir()


def find_site(folder: Path, read_classes: bool = True, zero_fill: bool = False) -> SiteFiles:
    """List the images and labels of a site's folder.

    ``read_classes`` is for whoever does not know them already; with ``zero_fill`` channels may be missing.
    """
    published = (folder / "imagesTr").is_dir() and not (folder / "images").is_dir()
    images_folder, labels_folder = (
        folder / name for name in (("imagesTr", "labelsTr") if published else ("images", "labels"))
    )
    images = image_files_in(images_folder)
    if not images:
        raise PolyclinicError(
            f"{folder}: site without images; put them into {images_folder}, "
            "or list the folders that are sites as 'sites' in federation.toml."
        )
    dataset = _dataset_json(folder) if published else {}
    classes = _classes(folder, dataset) if read_classes else None
    labels = by_stem(image_files_in(labels_folder))
    channels = channel_files(images, zero_fill) if published else None
    if channels is not None and not any(stem_of(path) in labels for path in images):
        entries = [
            ImageFiles(name, files, labels.get(name), places_of(files) if zero_fill else ())
            for name, files in channels.items()
        ]
    elif isinstance(dataset.get("training"), list):
        return SiteFiles(_listed(folder, dataset["training"]), classes)
    else:
        entries = [ImageFiles(name, (path,), labels.get(name)) for name, path in by_stem(images).items()]
    names = {entry.name for entry in entries}
    for name, path in labels.items():
        if name not in names:
            raise PolyclinicError(
                f"{path}: label without an image; add {images_folder.name}/{name}.* or take the label out."
            )
    return SiteFiles(tuple(sorted(entries, key=lambda entry: entry.name)), classes)


def image_files_in(folder: Path) -> list[Path]:
    """The image files of a folder, sorted, without hidden files, clutter and the data of ``.mhd`` headers."""
    if not folder.is_dir():
        return []
    files = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".") and p.name.lower() not in _CLUTTER]
    headers = {stem_of(path) for path in files if path.name.lower().endswith(".mhd")}
    known = []
    for path in files:
        if path.suffix.lower() in (".raw", ".zraw") and path.stem in headers:
            continue
        if suffix_of(path) is None or not path.is_file():
            raise PolyclinicError(
                f"{path}: unknown format; expected one of {', '.join(SUFFIXES)}, so convert it or take it out."
            )
        known.append(path)
    return known


def by_stem(files: list[Path]) -> dict[str, Path]:
    """Files by their name without its suffix, which must be unique."""
    by_stem: dict[str, Path] = {}
    for path in files:
        other = by_stem.setdefault(stem_of(path), path)
        if other is not path:
            raise PolyclinicError(f"{path}: has the same name as {other.name}; keep one of them or rename it.")
    return by_stem


def places_of(files: tuple[Path, ...]) -> tuple[int, ...]:
    """The numbers of channels in the names of files."""
    return tuple(int(stem_of(path)[-4:]) for path in files)


def channel_files(images: list[Path], zero_fill: bool = False) -> dict[str, tuple[Path, ...]] | None:
    """Group ``name_0000`` files by name; None when the files are not named so.

    Only with ``zero_fill`` may an image lack a channel that others have.
    """
    groups: dict[str, list[Path]] = {}
    for stem, path in by_stem(images).items():
        match = CHANNEL_NAME.fullmatch(stem)
        if match is None:
            return None
        groups.setdefault(match[1], []).append(path)
    count = max(len(files) for files in groups.values())
    for name, files in groups.items() if not zero_fill else ():
        if [stem_of(path)[-4:] for path in files] != [f"{index:04d}" for index in range(count)]:
            raise PolyclinicError(
                f"{files[0].parent}: image '{name}' has the channels "
                f"{', '.join(stem_of(path)[-4:] for path in files)}, "
                f"but others have 0000 to {count - 1:04d}; add the missing files, or write "
                'missing_channels = "zeros" in federation.toml.'
            )
    return {name: tuple(files) for name, files in groups.items()}


def _listed(folder: Path, entries: list[Any]) -> tuple[ImageFiles, ...]:
    """The images of a Decathlon ``training`` list, whose paths are relative to the site."""
    by_name: dict[str, ImageFiles] = {}
    for entry in entries:
        pair = entry if isinstance(entry, dict) else {"image": entry}
        image = folder / str(pair.get("image", ""))
        label = folder / str(pair["label"]) if pair.get("label") else None
        for path in (image, label):
            if path is not None and not path.is_file():
                raise PolyclinicError(
                    f"{folder / 'dataset.json'}: lists {path}, which does not exist; correct the list or add the file."
                )
        name = stem_of(image)
        if name in by_name:
            raise PolyclinicError(f"{folder / 'dataset.json'}: lists the image '{name}' twice; keep one entry.")
        by_name[name] = ImageFiles(name, (image,), label)
    if not by_name:
        raise PolyclinicError(
            f"{folder / 'dataset.json'}: its 'training' list is empty, so that the site has no images; fill it."
        )
    return tuple(by_name[name] for name in sorted(by_name))


def _dataset_json(folder: Path) -> dict[str, Any]:
    path = folder / "dataset.json"
    if not path.is_file():
        return {}
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PolyclinicError(f"{path}: cannot be read as JSON ({error}); correct it or remove it.") from error
    return description if isinstance(description, dict) else {}


def _classes(folder: Path, description: dict[str, Any]) -> tuple[str, ...] | None:
    """Class names by value, from ``{"background": 0}`` (nnU-Net v2) or ``{"0": "background"}`` (v1, Decathlon)."""
    labels = description.get("labels")
    if not isinstance(labels, dict) or not labels:
        return None
    pairs = [(key, value) if str(key).isdecimal() else (value, key) for key, value in labels.items()]
    try:
        names = {int(value): str(name) for value, name in pairs}
    except (TypeError, ValueError):
        names = {}
    if sorted(names) != list(range(len(labels))) or "ignore" in names.values():
        raise PolyclinicError(
            f"{folder / 'dataset.json'}: 'labels' must give one name to each of the values 0, 1, 2 and so on "
            "(no regions, no ignore label); convert the labels to plain classes."
        )
    return tuple(names[value] for value in range(len(names)))
