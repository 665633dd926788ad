"""``report.html`` and the figures beside it: what ``polyclinic report`` writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_private, write_text
from polyclinic.report.page.build import Extras, build_page, check_metric
from polyclinic.report.page.exchange import Declared
from polyclinic.report.page.opening import answer
from polyclinic.report.page.paper_figures import write_figures
from polyclinic.report.page.pictures import read_features, read_gallery
from polyclinic.report.page.results import Grid, Results
from polyclinic.report.statistics import GridStatistics, grid_statistics

_MARK = '<meta name="generator" content="polyclinic '


@dataclass(frozen=True)
class ReportFiles:
    """What was written, and the headline as plain data."""

    report: Path
    figures: list[Path]
    headline: dict[str, Any]


def write_report(
    results: Results, out: Path, metric: str | None = None, declared: Declared | None = None, no_pictures: str = ""
) -> ReportFiles:
    """Write the page and the figures. ``no_pictures`` says why there are none; else those in ``gallery`` are shown.

    A page with pictures of patients can be read by its owner alone.
    """
    refuse_other_file(out)
    metric = check_metric(results, metric)
    extras = all_extras(results, metric, no_pictures)
    page = build_page(results, metric, extras, declared)
    if page.gallery["cases"]:
        write_private(out, page.html().encode())
    else:
        write_text(out, page.html())
    figures = write_figures(results, metric, results.folder / "figures")
    grids = [_headline(grid, metric, extras[grid.folder].statistics) for grid in results.grids]
    headline: dict[str, Any] = {"kind": results.kind, "question": page.title, "metric": metric, "comparisons": grids}
    headline["pictures"] = bool(page.gallery["cases"])
    return ReportFiles(out, figures, headline)


def all_extras(results: Results, metric: str, no_pictures: str = "") -> dict[Path, Extras]:
    """What the page shows beside the record, by the folder of a grid; the pictures of a study are of its first grid."""
    found = {}
    for number, grid in enumerate(results.grids):
        reason = no_pictures or (f"they are of {results.grids[0].title}." if number else "")
        pictures = None if reason else read_gallery(results.folder)
        features = None if reason else read_features(results.folder)
        found[grid.folder] = Extras(statistics_of(grid, metric), pictures, features, reason)
    return found


def statistics_of(grid: Grid, metric: str) -> GridStatistics | None:
    """The statistics of a grid; nothing for a single method, or before two methods have results."""
    if len(grid.methods) < 2 or len({run.method for run in grid.finished}) < 2:
        return None
    reference = grid.reference if (grid.folder / "grid.json").exists() else None
    return grid_statistics(grid.folder, metric, reference)


def refuse_other_file(out: Path) -> None:
    """A report may replace a report, and nothing else."""
    if out.is_dir():
        raise PolyclinicError(f"--out {out}: is a folder; name a file, such as {out / 'report.html'}.")
    if out.exists():
        with out.open("rb") as file:
            start = file.read(4096)
        if _MARK.encode() not in start:
            raise PolyclinicError(f"--out {out}: is there already and no report of polyclinic; choose another name.")


def _headline(grid: Grid, metric: str, statistics: GridStatistics | None) -> dict[str, Any]:
    table = grid.comparison(metric)
    return {
        "title": grid.title,
        "answer": answer(grid, metric),
        "reference": grid.reference,
        "sentences": list(statistics.sentences) if statistics else [],
        "methods": {
            method: {
                "average": table.mean(method, "average"),
                "standard_deviation": table.deviation(method, "average"),
                "sites": {site: table.mean(method, site) for site in table.sites},
            }
            for method in grid.methods
        },
        "missing": list(table.missing),
    }
