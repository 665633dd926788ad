"""The whole of ``polyclinic report``: pictures first, where they can be had, then the page and its figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page.build import check_metric
from polyclinic.report.page.origin import refused_plugins
from polyclinic.report.page.results import read_results
from polyclinic.report.report_file import ReportFiles, refuse_other_file, write_report
from polyclinic.runs.features import make_features
from polyclinic.runs.gallery import make_gallery
from polyclinic.runs.what_leaves import declared_exchange

Progress = Callable[[int, int, str], None]
"""Is told how many steps are done, of how many, and what is next."""
Warn = Callable[[str], None]


def report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    pictures: bool = True,
    metric: str | None = None,
    reference: str | None = None,
    plugins: bool = False,
    progress: Progress = lambda *_: None,
    warn: Warn = lambda _: None,
) -> ReportFiles:
    """Write the page of a run, a comparison, a study or an ablation, and figures for a paper beside it.

    Pictures need the images and the models; where these are elsewhere, the page says so and holds everything else.
    So it does where recipes name plugins, unless ``plugins`` allows those to run: programs with your rights.
    """
    folder = Path(folder)
    results = read_results(folder, reference)
    file = Path(out) if out is not None else folder / "report.html"
    refuse_other_file(file)
    metric = check_metric(results, metric)
    refused = "" if plugins else refused_plugins(results)
    if refused:
        warn(f"the page is without {'pictures and ' if pictures else ''}what components declare: {refused}")
    if not pictures:
        reason = "the report was made without them."
    else:
        reason = refused or _make_pictures(folder, metric, results.grids[0].reference, plugins, progress, warn)
    return write_report(results, file, metric, partial(declared_exchange, plugins=plugins), reason)


def _make_pictures(folder: Path, metric: str, reference: str, plugins: bool, progress: Progress, warn: Warn) -> str:
    """Pictures and features for the page; why there are none, if there are none."""
    try:
        made = make_gallery(folder, metric=metric, reference=reference, plugins=plugins, progress=progress, warn=warn)
        make_features(folder, reference=reference, plugins=plugins, progress=progress, warn=warn)
    except PolyclinicError as error:
        warn(f"no pictures: {error}")
        return str(error)
    reasons = list(dict.fromkeys(entry["reason"] for entry in made.skipped))
    return "" if made.cases else " ".join(reasons) or "there was no test case to show."
