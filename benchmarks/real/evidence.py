"""What `polyclinic advise` knows: the tables of the pages as data, made from the records of their runs.

    POLYCLINIC_REAL_DATA=folder python benchmarks/real/evidence.py      # writes src/polyclinic/preview/evidence.json

Traits of a federation need its images; without POLYCLINIC_REAL_DATA those of the file stay.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from federations import make
from grids import HERE, Grid
from page import Page
from pages import PAGES
from records import restore

from polyclinic.core.files import read_json, write_json
from polyclinic.data.check import check_federation
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.evidence import FILE, settings_of
from polyclinic.report.statistics import grid_statistics
from polyclinic.report.tables import comparison_of

COSTS = HERE.parent / "methods_cost.md"


def tables(folder: Path, traits: dict[str, Any]) -> list[dict[str, Any]]:
    """All finished tables whose federation's traits are known; records are restored below ``folder``."""
    found = []
    for page in PAGES.values():
        restore(HERE / "records" / f"{page.name}.tar.xz", folder / page.name, folder)
        for grid in filter(lambda one: one.advises, page.grids):
            entry = table(page, grid, folder)
            if entry is not None and entry["federation"] in traits:
                found.append({**entry, "traits": traits[entry["federation"]]})
    return found


def table(page: Page, grid: Grid, folder: Path) -> dict[str, Any] | None:
    """The finished rows of a grid as plain data; None while there are none to compare."""
    runs, recipe = folder / page.name / grid.name, grid.recipe_on(folder)
    finished = grid.finished_rows(folder, runs)
    if finished is None:
        return None
    finished.plan(folder, runs).save()
    compared = comparison_of(runs, "dice")
    statistics = grid_statistics(runs, "dice", grid.reference or None)
    rows = []
    for method in compared.methods:
        own = statistics.methods.get(method)
        interval = own.interval if own else None
        rows.append(
            {
                "method": method,
                "dice": _percent(compared.mean(method, "average")),
                "difference": _percent(own.difference) if own else None,
                "low": _percent(interval.low) if interval else None,
                "high": _percent(interval.high) if interval else None,
                "verdict": own.verdict if own else "",
            }
        )
    return {
        "federation": Path(recipe.federation).name,
        "title": grid.title,
        "page": f"benchmarks/real/{page.name}.md",
        "protocol": recipe.protocol.kind,
        "labelled": recipe.data.labelled,
        "intensity": recipe.data.intensity,
        "settings": settings_of(recipe),
        "reference": statistics.reference,
        "seeds": len(finished.seeds),
        "cases": max((one.cases for one in statistics.methods.values()), default=0),
        "rows": rows,
    }


def costs() -> dict[str, float]:
    """A round's time over FedAvg's, from the table of benchmarks/methods_cost.py."""
    rows = re.findall(
        r"^\| (\S+) \| \w+ \| [\d.]+ \| \*\*([\d.]+)\*\*", COSTS.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {method: float(ratio) for method, ratio in rows}


def measured_traits(data: Path) -> dict[str, Any]:
    """The traits of every federation that a page names."""
    names = {Path(grid.recipe_on(data).federation).name for page in PAGES.values() for grid in page.grids}
    return {name: asdict(FederationTraits.of(check_federation(make(name, data)))) for name in sorted(names)}


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def main() -> None:
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    known = {entry["federation"]: entry["traits"] for entry in read_json(FILE)["tables"]} if FILE.exists() else {}
    traits = measured_traits(Path(data)) if data else known
    with tempfile.TemporaryDirectory() as folder:
        write_json(FILE, {"tables": tables(Path(folder), traits), "costs": costs()})
    print(f"Written: {FILE}")


if __name__ == "__main__":
    main()
