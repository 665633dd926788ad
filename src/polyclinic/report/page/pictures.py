"""Pictures and feature maps for the page, from the files that ``runs`` has drawn into a folder ``gallery``.

The files may come from elsewhere: names lead nowhere else, PNG must be PNG, and what is not so gets a sentence.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes
from polyclinic.core.wording import first_finding

_PNG = b"\x89PNG\r\n\x1a\n"
_LARGEST = 20 * 10**6  # bytes of one picture
Table = TypeVar("Table", bound=BaseModel)
Colour = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Slice(_Model):
    """One slice of a case: file names of the image, of the truth and of each method's prediction."""

    index: int
    image: str
    truth: str
    predictions: dict[str, str]


class Case(_Model):
    """One case of a site, with the score of each method."""

    rank: Literal["best", "median", "worst"]
    case: str
    image: str
    part: str = "all"
    seed: int = 0
    scores: dict[str, float | None]
    size: tuple[int, int]
    slices: list[Slice] = Field(min_length=1)
    start: int = 0
    """The place in ``slices`` of the one that is shown first."""
    models: dict[str, str] = Field(default_factory=dict)
    """The site whose model is shown, by method, where several were tested."""
    differs: list[str] = Field(default_factory=list)
    """Methods whose prediction, made again, is not what was tested."""

    @property
    def first(self) -> int:
        """``start``, inside of ``slices`` whatever it is."""
        return min(max(self.start, 0), len(self.slices) - 1)


class Skipped(_Model):
    """A site, or a method at a site, without pictures, and why; an empty name stands for all."""

    site: str = ""
    method: str = ""
    reason: str


class Gallery(_Model):
    """``gallery.json``, version 1."""

    version: Literal[1]
    classes: list[str]
    colours: list[Colour]
    methods: list[str]
    reference: str = ""
    metric: str = "dice"
    sites: dict[str, list[Case]]
    skipped: list[Skipped] = Field(default_factory=list)


class Point(_Model):
    """One prototype or mean of features."""

    site: str
    label: str | None = Field(None, alias="class")
    x: float
    y: float


class Panel(_Model):
    """The features of a method before and after alignment, on their first two principal components."""

    method: str
    title: str
    explained: list[float]
    before: list[Point]
    after: list[Point]
    between_sites: dict[Literal["before", "after"], float] = Field(default_factory=dict)
    """The share of the variance that lies between sites."""
    note: str = ""


class Features(_Model):
    """``features.json``, version 1."""

    version: Literal[1]
    panels: list[Panel]


@dataclass(frozen=True)
class Pictures:
    """A gallery with its files, each as a ``data:`` address by file name."""

    gallery: Gallery
    files: dict[str, str]


def read_gallery(folder: Path) -> Pictures | None:
    """The gallery of a run or grid; nothing where none was made."""
    file = folder / "gallery" / "gallery.json"
    if not file.exists():
        return None
    gallery = _checked(Gallery, file)
    slices = [one for cases in gallery.sites.values() for case in cases for one in case.slices]
    names = dict.fromkeys(name for one in slices for name in (one.image, one.truth, *one.predictions.values()))
    return Pictures(gallery, {name: _address(file.parent, name) for name in names})


def read_features(folder: Path) -> Features | None:
    """The feature maps of a run or grid; nothing where none were made."""
    file = folder / "gallery" / "features.json"
    return _checked(Features, file) if file.exists() else None


def _checked(kind: type[Table], file: Path) -> Table:
    try:
        return kind.model_validate_json(read_bytes(file))
    except ValidationError as error:
        finding = first_finding(error)
        key = ".".join(map(str, finding.place)) or "it"
        raise PolyclinicError(
            f"{file}: {key}: {finding.words}; remove the folder {file.parent} and make the report again."
        ) from None


def _address(folder: Path, name: str) -> str:
    """A file of the folder itself, and nothing outside of it, as a ``data:`` address."""
    path = folder / name
    if Path(name).name != name or path.is_symlink():
        raise PolyclinicError(
            f"{folder / 'gallery.json'}: {name!r} is no file of this folder; make the pictures again."
        )
    data = read_bytes(path)
    if not data.startswith(_PNG) or len(data) > _LARGEST:
        raise PolyclinicError(f"{path}: not a PNG of at most {_LARGEST // 10**6} MB; make the pictures again.")
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
