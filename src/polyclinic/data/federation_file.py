"""``federation.toml``: what the sites agree on. Every key is optional."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.wording import first_finding
from polyclinic.recipe.files import refuse_deep_keys

LabelEntry = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | Literal["nonzero"]
"""The values of a class in label files."""


class FederationFile(BaseModel):
    """The keys of ``federation.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    classes: Annotated[tuple[str, ...], Field(min_length=2, max_length=255)] | None = None
    modality: str = ""
    channels: Annotated[int, Field(ge=1)] | None = None
    regions: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = {}
    spatial_dims: Literal[2, 3] | None = None
    spacing: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2, max_length=3)] | None = None
    case_pattern: str | None = None
    sites: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    labels: dict[str, LabelEntry] = {}
    site_labels: dict[str, dict[str, LabelEntry]] = {}
    missing_channels: Literal["refuse", "zeros"] = "refuse"

    @field_validator("classes", "sites")
    @classmethod
    def _no_duplicates(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and len(set(names)) != len(names):
            raise ValueError("names must differ from one another")
        return names


def read_federation_file(path: Path) -> FederationFile:
    """Read ``federation.toml``; a missing file says nothing, a wrong key gets a sentence."""
    if not path.is_file():
        return FederationFile()
    try:
        text = path.read_text(encoding="utf-8")
        refuse_deep_keys(text, str(path))
        table = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise PolyclinicError(f"{path}: cannot be read as TOML ({error}); correct that line.") from error
    known = list(FederationFile.model_fields)
    for key in table:
        if key not in known:
            advice = suggestion(key, known) or f"; known keys are {', '.join(known)}."
            raise PolyclinicError(f"{path}: unknown key '{key}'{advice}")
    try:
        return FederationFile.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = first["loc"][0] if first["loc"] else ""
        raise PolyclinicError(
            f"{path}: '{where}' is {table.get(str(where))!r}, but {first_finding(error).words}; "
            f"{_HINTS.get(str(where), 'correct it')}."
        ) from error


def read_valid_keys(path: Path) -> FederationFile:
    """The keys of a faulty ``federation.toml`` that are good, so that one typo does not hide all other faults."""
    try:
        text = path.read_text(encoding="utf-8")
        refuse_deep_keys(text, str(path))
        table = tomllib.loads(text)
    except (OSError, ValueError):
        return FederationFile()
    good = {}
    for key, value in table.items():
        try:
            FederationFile.model_validate({key: value})
        except ValidationError:
            continue
        good[key] = value
    return FederationFile.model_validate(good)


_HINTS = {
    "classes": 'write the background first, as in classes = ["background", "tumour"]',
    "regions": 'write a table [regions] with lines such as cord = ["white matter", "grey matter"]',
    "labels": 'write a table [labels] with lines such as tumour = [1, 2, 4] or tumour = "nonzero"',
    "site_labels": "write a table [site_labels.SITE] with lines such as tumour = [1, 2, 3]",
    "missing_channels": 'write "refuse" or "zeros"',
    "spatial_dims": "write 2 or 3",
    "channels": "write a number such as 1 or 3",
    "spacing": "write millimetres along each axis of a file, such as [0.5, 0.5]",
}
