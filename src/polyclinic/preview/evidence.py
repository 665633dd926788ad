"""What was measured on real federations, as data: the tables of ``benchmarks/real`` that advice is given from.

``evidence.json`` is made by ``benchmarks/real/evidence.py`` from the records of finished runs, and a test makes it
again; nothing in it is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import hypot, log2
from operator import attrgetter
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.methods.expression import parse_method, same_method
from polyclinic.recipe import Recipe

REFERENCES = ("central", "local", "fl_upper")
"""No methods to choose: images leave the sites, no model is shared, or all labels are read."""
SETTINGS = ("data.intensity", "network.norm", "training.loss", "training.dice_classes", "training.rounds")
"""Keys that move a table as much as methods do. Sizes of images are not among them: they follow from the federation."""
FILE = Path(__file__).with_name("evidence.json")


@dataclass(frozen=True)
class MeasuredRow:
    """A method in a measured table. Dice and differences are in %; the interval is over cases and seeds."""

    method: str
    dice: float
    difference: float | None
    low: float | None
    high: float | None
    verdict: str
    """``better``, ``worse``, ``not shown``, ``equal``; empty for the reference itself."""

    @property
    def against(self) -> str:
        """The difference with its interval, such as ``+0.9 [0.2, 1.6]``; empty for the reference."""
        if self.difference is None:
            return ""
        interval = "" if self.low is None or self.high is None else f" [{_short(self.low)}, {_short(self.high)}]"
        return f"{_short(self.difference, '+')}{interval}"


@dataclass(frozen=True)
class MeasuredTable:
    """A table of methods on one federation."""

    federation: str
    title: str
    page: str
    protocol: str
    labelled: int | None
    intensity: str
    reference: str
    seeds: int
    cases: int
    traits: FederationTraits
    rows: tuple[MeasuredRow, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """The values of ``SETTINGS`` in its recipe; of tables written before there were any, the intensities alone."""

    @property
    def rounds(self) -> int:
        """How long it was trained; 0 where that was not written down."""
        return int(self.settings.get("training.rounds", 0))

    def row(self, method: str) -> MeasuredRow | None:
        """The row of a method, by whatever expression it was measured; None if it was not."""
        named = next((row for row in self.rows if row.method == method), None)
        wanted = parse_method(method)
        return named or next((row for row in self.rows if same_method(parse_method(row.method), wanted)), None)

    def best_gain(self) -> MeasuredRow | None:
        """The method with the largest difference of those that are better than the reference."""
        gains = [row for row in self.rows if row.verdict == "better" and row.method not in REFERENCES]
        return max(gains, key=lambda row: row.difference or 0.0, default=None)


@dataclass(frozen=True)
class Evidence:
    """All measured tables, and what a round of each method costs over FedAvg's."""

    tables: tuple[MeasuredTable, ...]
    costs: dict[str, float]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The values of ``SETTINGS`` in a recipe."""
    return {key: attrgetter(key)(recipe) for key in SETTINGS}


def named_settings(settings: dict[str, Any]) -> str:
    """``data.intensity = site, training.rounds = 30``."""
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def load_evidence(file: Path = FILE) -> Evidence:
    """Read the file that comes with the package."""
    plain = read_json(file)
    return Evidence(tuple(_table(entry) for entry in plain["tables"]), dict(plain["costs"]))


def _table(entry: dict[str, Any]) -> MeasuredTable:
    traits: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry["traits"].items()
    }
    rows = tuple(MeasuredRow(**row) for row in entry["rows"])
    settings = {"data.intensity": entry["intensity"], **entry.get("settings", {})}
    return MeasuredTable(**{**entry, "traits": FederationTraits(**traits), "rows": rows, "settings": settings})


def _short(number: float, sign: str = "") -> str:
    """With one decimal, and no minus before 0."""
    return f"{round(number, 1) + 0.0:{sign}.1f}"


def distance(first: FederationTraits, second: FederationTraits) -> float:
    """How unlike two federations are: 0 for the same, about 1 where one trait is of another kind.

    Structures twice as wide or four times as frequent, a shift half a unit larger, or sites of mixed polarity count 1
    each. What one of the two does not know counts nothing. 2D and 3D are never alike.
    """
    if first.dims != second.dims:
        return float("inf")
    parts = [float((first.polarity == "mixed") != (second.polarity == "mixed"))]
    if first.width and second.width:
        parts.append(log2(first.width / second.width))
    if first.foreground and second.foreground:
        parts.append(log2(first.foreground / second.foreground) / 2)
    if first.shift is not None and second.shift is not None:
        parts.append((first.shift - second.shift) / 0.5)
    return hypot(*parts)
