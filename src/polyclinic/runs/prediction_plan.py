"""Which files a prediction is to write, and what is not overwritten without being asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.core.wording import counted
from polyclinic.data.federation import Item
from polyclinic.data.writers import mask_path, probabilities_path

RECORD = ".predicted-by.json"
"""In a folder of masks: the model that made them. Hidden, so that the folder can serve as one of labels."""
_PART = re.compile(r"\.(.+)\.\d+\.part")
_NAMED = 3  # files in a sentence


@dataclass(frozen=True)
class Wanted:
    """An image, and which files are to be written of it; None for what is not wanted or is there already."""

    item: Item
    mask: Path | None
    probabilities: Path | None

    def as_plain(self) -> dict[str, Any]:
        """As plain data, for another process."""
        images = [str(path.resolve()) for path in self.item.images]
        files = {name: str(path.resolve()) if path else None for name, path in self._files().items()}
        return {"name": self.item.name, "images": images, "places": self.item.places, **files}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Wanted:
        """What ``as_plain`` gave."""
        images = tuple(Path(path) for path in data["images"])
        item = image_item(data["name"], images, tuple(data["places"]))
        return cls(item, *(Path(data[name]) if data[name] else None for name in ("mask", "probabilities")))

    def _files(self) -> dict[str, Path | None]:
        return {"mask": self.mask, "probabilities": self.probabilities}

    @property
    def files(self) -> list[Path]:
        """What is to be written."""
        return [path for path in self._files().values() if path is not None]


@dataclass
class Outcome:
    """What came of a prediction: what was written of each image, what was there already, a sentence for each failure.

    All are by the name of the image, in the order of the images.
    """

    out: Path
    classes: tuple[str, ...]
    masks: dict[str, Path] = field(default_factory=dict)
    probabilities: dict[str, Path] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, wanted: Wanted, problem: str | None) -> None:
        """Put down what came of an image."""
        if problem is not None:
            self.failed[wanted.item.name] = problem
            return
        if wanted.mask is not None:
            self.masks[wanted.item.name] = wanted.mask
        if wanted.probabilities is not None:
            self.probabilities[wanted.item.name] = wanted.probabilities


def image_item(name: str, images: tuple[Path, ...], places: tuple[int, ...]) -> Item:
    """An image that belongs to no site."""
    return Item("", name, images, None, name, places=places)


def plan_files(
    items: Sequence[Item], out: Path, *, probabilities: bool, overwrite: bool, skip_existing: bool
) -> tuple[list[Wanted], list[str]]:
    """What is to be written of each image, and the names of images of which all is there already.

    Without ``overwrite`` or ``skip_existing`` a file that is there already is an error, before anything is written.
    """
    if overwrite and skip_existing:
        raise PolyclinicError("--overwrite and --skip-existing: exclude each other; give one of them.")
    if any(path.resolve().parent == out.resolve() for item in items for path in item.images):
        raise PolyclinicError(f"--out {out}: holds the images, which masks would overwrite; choose another folder.")
    places = [(item, out / item.name) for item in items]
    all_wanted = [
        Wanted(item, mask_path(place, item), probabilities_path(place, item) if probabilities else None)
        for item, place in places
    ]
    paths = [path for wanted in all_wanted for path in wanted.files]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise PolyclinicError(f"{twice}: would be written for two images; rename one of them.")
    existing = {path for path in paths if path.exists()}
    if overwrite or not existing:
        return all_wanted, []
    if not skip_existing:
        raise PolyclinicError(
            f"{out}: holds {len(existing)} of the {counted(len(paths), 'file')} already ({_names(sorted(existing))}); "
            "give --skip-existing to make only what is missing, --overwrite to make all again, or another --out."
        )
    left = [Wanted(one.item, _unless(one.mask, existing), _unless(one.probabilities, existing)) for one in all_wanted]
    return [one for one in left if one.files], [one.item.name for one in left if not one.files]


def _unless(path: Path | None, existing: set[Path]) -> Path | None:
    return None if path in existing else path


def _names(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {counted(more, 'other')}" if more > 0 else "")


def remove_parts(out: Path, wanted: Sequence[Wanted]) -> None:
    """Remove what processes that were killed have left of the wanted files (``core/files.py`` gives it its name)."""
    names = {path.name for one in wanted for path in one.files}
    for path in out.iterdir() if out.is_dir() else ():
        part = _PART.fullmatch(path.name)
        if part and part[1] in names:
            path.unlink(missing_ok=True)


def record_model(out: Path, model: dict[str, str]) -> None:
    """Note which model has made the masks of a folder."""
    write_json(out / RECORD, model)


def require_same_model(out: Path, model: dict[str, str]) -> None:
    """Raise if the masks of a folder were made with other weights, or with other numbers that scale intensities.

    A folder without a record may go on with any.
    """
    path = out / RECORD
    if not path.exists():
        return
    before = read_json(path)
    if not isinstance(before, dict) or any(before.get(key) != model.get(key) for key in ("weights", "intensity")):
        other = before.get("run") if isinstance(before, dict) else None
        raise PolyclinicError(
            f"{out}: its masks were made with another model ({other}), or other images' mean and deviation, and "
            "--skip-existing would mix them with those of this one; give --overwrite or another --out."
        )
