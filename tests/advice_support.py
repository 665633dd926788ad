"""Traits and tables to ask for advice with."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.evidence import Evidence, MeasuredRow, MeasuredTable

VESSELS = FederationTraits(4, 20, 42, 1.0, 2, 1, 0.086, 2.5, 1.08, "unclear", (256, 256), 1.0)
VENTRICLE = FederationTraits(3, 80, 100, 1.0, 2, 1, 0.025, 24.0, 1.5, "brighter", (192, 192), 1.0)
VOLUMES = FederationTraits(3, 33, 80, 1.0, 3, 2, 0.05, 4.7, 0.16, "darker", (43, 58, 47), 1.0)
NOTHING = Evidence((), {})


def row(method: str, difference: float, verdict: str, dice: float = 70.0) -> MeasuredRow:
    """A row with an interval of a point on either side."""
    return MeasuredRow(method, dice + difference, difference, difference - 1, difference + 1, verdict)


def table(traits: FederationTraits, name: str, *rows: MeasuredRow, **changes: object) -> MeasuredTable:
    """A table whose reference is FedAvg with 70 Dice."""
    intensity = str(changes.get("intensity", "zero-one"))
    plain = MeasuredTable(
        name, name, f"benchmarks/real/{name}.md", "own-test", None, intensity, "fedavg", 3, 26, traits,
        (MeasuredRow("fedavg", 70.0, None, None, None, ""), *rows), {"data.intensity": intensity},
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]
