"""The gallery of a run, a comparison or a study: pictures of a few test cases with what each method made of them.

``FOLDER/gallery/gallery.json`` and PNG files beside it, which ``polyclinic report`` puts into its page. They are
pictures of patients: only their owner can read them. Predictions are made by the code that scored the test, and their
values are compared with those of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.runs.compared_runs import compared_runs
from polyclinic.runs.gallery_making import GalleryMaking, Progress
from polyclinic.runs.gallery_pictures import colours
from polyclinic.runs.made_tables import VERSION, read_made, write_made
from polyclinic.runs.tested_models import TestedModels


@dataclass(frozen=True)
class GalleryResult:
    """What is there now: ``path`` is ``gallery.json``, ``reused`` says that nothing had to be made."""

    path: Path
    cases: int
    skipped: list[dict[str, str]]
    reused: bool = False


def make_gallery(
    folder: str | Path,
    *,
    metric: str = "dice",
    reference: str | None = None,
    plugins: bool = False,
    progress: Progress = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> GalleryResult:
    """Make the gallery of a folder, unless it is there and what it was made of is the same.

    Best, median and worst case of each site are those of the ``reference`` method (by default the first one) by
    ``metric``, in the first seed; of a study, for its first value. What cannot be shown, because images or personal
    weights are elsewhere, is in ``skipped`` with the reason, and told to ``warn``. ``plugins`` allows those that the
    recipes name to run. ``progress`` is told how many predictions are done, of how many, and what is next.
    """
    folder = Path(folder)
    runs = compared_runs(folder, reference)
    models = TestedModels.of(runs.folders[runs.reference], plugins)
    inputs = {**runs.inputs(), "metric": metric, "data": models.where_data_is()}
    if models.task.regions:
        inputs["regions"] = "as scored"  # galleries of earlier versions painted class maps
    target = folder / "gallery"
    before = read_made(target / "gallery.json")
    if before.get("inputs") == inputs and all((target / name).is_file() for name in _files(before)):
        shown = sum(map(len, before["sites"].values()))
        return GalleryResult(target / "gallery.json", shown, before["skipped"], reused=True)
    making = GalleryMaking(runs, metric, target, plugins, progress)
    making.fill(models)
    judged = list(models.task.judged)
    table = {
        "version": VERSION, "classes": judged, "colours": colours(len(judged)), "methods": list(runs.folders),
        "reference": runs.reference, "metric": metric, "seed": runs.seed, **runs.about,
        "sites": making.sites, "skipped": making.skipped, "inputs": inputs,
    }  # fmt: skip
    write_made(target / "gallery.json", table)
    # Only what the gallery before had: another process may be making one now, and its files have the same names.
    for name in _files(before) - _files(table):
        (target / name).unlink(missing_ok=True)
    for entry in making.skipped:
        whose = ", ".join(name for name in (entry["site"], entry["method"]) if name) or "any case"
        warn(f"no picture of {whose}: {entry['reason']}")
    return GalleryResult(target / "gallery.json", sum(map(len, making.sites.values())), making.skipped)


def _files(table: Mapping[str, Any]) -> set[str]:
    """Names of the pictures that a table has; a table that was tampered with names nothing elsewhere."""
    try:
        slices = [one for entries in table["sites"].values() for entry in entries for one in entry["slices"]]
        names = {name for one in slices for name in (one["image"], one["truth"], *one["predictions"].values())}
        return {name for name in names if Path(name).name == name and name.endswith(".png")}
    except (KeyError, TypeError, AttributeError):
        return set()
