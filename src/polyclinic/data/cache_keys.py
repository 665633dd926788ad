"""Under which names prepared images and labels lie in the cache: a hash over everything that they depend on.

Contents of files count, their names and places do not: a federation that was moved or copied is found again. Labels
have a name of their own, so that runs which may read other labels share the images.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from polyclinic.data.content_hashes import content_hashes
from polyclinic.data.federation import Federation, Item
from polyclinic.data.formats.registry import format_of, suffix_of
from polyclinic.data.label_values import LabelValues
from polyclinic.recipe import DataSettings

CACHE_FORMAT = 3  # raise it when the same files and settings would give other tensors
# Not those that matter: a new setting changes the key until somebody says that it changes no tensor.
_SETTINGS_THAT_DO_NOT_MATTER = {
    "sites", "labelled", "label_seed", "intensity_statistics", "patch", "foreground", "split", "split_from",
    "case_pattern", "memory_limit_mb", "cache", "cache_limit_mb",
}  # fmt: skip
_LIBRARIES_THAT_MATTER = ("torch", "monai", "numpy", "scipy", "pillow", "nibabel", "itk-io")


class CacheKeys(NamedTuple):
    """Names of the entries of a site's images and of its labels; ``labels`` is empty where none may be read."""

    images: str
    labels: str


def cache_keys(
    items: Sequence[Item], federation: Federation, settings: DataSettings, memory: Path | None = None
) -> CacheKeys:
    """The keys of a site's prepared images and labels; ``memory`` is the folder where hashes of files are remembered.

    Only images and the labels that ``items`` name are read.
    """
    hashes = content_hashes(files_of(items), memory)
    task = federation.task
    shared = {
        "format": CACHE_FORMAT,
        "libraries": _library_versions(),
        "task": [task.channels, task.spatial_dims, task.neighbours, task.spacing, federation.volumes_as_slices],
        "settings": settings.model_dump(mode="json", exclude=_SETTINGS_THAT_DO_NOT_MATTER),
    }
    images = [
        [*(_identity(path, hashes) for path in item.images), *item.places, *_site(item, federation)] for item in items
    ]
    labels = [
        [image, _identity(item.label, hashes), item.labelled_slices, *_meaning(item.label_values)]
        for image, item in zip(images, items, strict=True)
        if item.label is not None
    ]
    classes = len(task.classes)
    return CacheKeys(
        _key({**shared, "images": images}), _key({**shared, "classes": classes, "labels": labels}) if labels else ""
    )


def _site(item: Item, federation: Federation) -> list[Any]:
    """The numbers of its site that an image is scaled by, where they are known before it is prepared."""
    intensity = federation.intensity.get(item.site)
    return [] if intensity is None else [intensity.as_plain()]


def _meaning(values: LabelValues | None) -> list[Any]:
    """What a label's values stand for, where they are not the classes themselves."""
    return [] if values is None else [values.pairs, values.others]


def files_of(items: Iterable[Item]) -> list[Path]:
    """All files that preparing these images reads."""
    return [path for item in items for path in (*item.images, *([] if item.label is None else [item.label]))]


def _key(what: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _identity(path: Path, hashes: Mapping[Path, str]) -> list[str]:
    """What a file gives depends on its content, and on its suffix by way of the code that reads it."""
    reader = getattr(format_of(path).read_array, "__module__", "")
    return [suffix_of(path) or path.suffix, _code_of(reader), hashes[path]]


@cache
def _code_of(module: str) -> str:
    """The hash of a plugin's code; formats of our own are covered by ``CACHE_FORMAT``."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module.startswith("polyclinic.") or not file:
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@cache
def _library_versions() -> tuple[str, ...]:
    """A new version may resample or decode a little differently; what was prepared with another is not mixed in."""
    return tuple(_version_of(name) for name in _LIBRARIES_THAT_MATTER)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
