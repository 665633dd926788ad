"""Read every file of a federation before a night of training does: what is there, and all that is wrong with it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item
from polyclinic.data.open_tolerantly import ANY_CLASSES, open_tolerantly
from polyclinic.data.problems import Problem, problem_of, relative
from polyclinic.data.readers import read_image, read_label
from polyclinic.data.site_totals import SiteRow, SiteTotals, style_shift
from polyclinic.recipe import DataSettings

Progress = Callable[[int, int], None]
_DEFAULTS = DataSettings.model_validate({})


@dataclass(frozen=True)
class CheckReport:
    """The sites, one row each, and every problem that was found."""

    federation: Federation
    rows: tuple[SiteRow, ...]
    problems: tuple[Problem, ...]
    shift: float | None = None
    """How far apart the sites' images look (``style_shift``)."""
    slice_axis: int | None = None
    """The axis along which volumes are cut into slices, where they are."""

    @property
    def classes(self) -> dict[int, str]:
        """Names by value: of declared classes, else of those that labels hold; none where no label tells."""
        names = dict(enumerate(self.federation.task.classes))
        if self.federation.task.classes != ANY_CLASSES:
            return names
        held = {name for row in self.rows for name in row.classes}
        return {value: name for value, name in names.items() if name in held}

    @property
    def errors(self) -> tuple[Problem, ...]:
        """What must be corrected before a run."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What a person should look at."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        task = self.federation.task
        return {
            "name": self.federation.name,
            "folder": str(self.federation.root),
            "task": {
                "classes": list(self.classes.values()),
                "channels": task.channels,
                "spatial_dims": task.spatial_dims,
                "regions": {name: list(members) for name, members in task.regions},
            },
            "sites": [asdict(row) for row in self.rows],
            "shift": self.shift,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def check_federation(
    source: str | Path, settings: DataSettings = _DEFAULTS, progress: Progress | None = None
) -> CheckReport:
    """Read all images and labels and report every problem; ``progress`` is told ``(images done, images in all)``.

    Only a source that holds no site raises; all else is reported.
    """
    federation, problems = open_tolerantly(source, settings)
    images = [item for items in federation.sites.values() for item in items]
    slice_axis = settings.slice_axis if federation.volumes_as_slices else None
    totals = {site: SiteTotals(slice_axis) for site in federation.sites}
    by_content: dict[bytes, list[Item]] = defaultdict(list)
    for done, item in enumerate(images, start=1):
        problems += _check_item(item, federation, totals[item.site], by_content)
        if progress is not None:
            progress(done, len(images))
    use_splits = settings.split_from == "auto"
    problems += _duplicates(by_content.values(), federation.root, use_splits)
    if use_splits:
        problems += _split_problems(federation)
    problems += _label_problems(federation, totals)
    rows = tuple(totals[site].row(site, items, federation.task.classes) for site, items in federation.sites.items())
    ordered = sorted(problems, key=lambda problem: (problem.severity, problem.site, problem.file))
    return CheckReport(federation, rows, tuple(ordered), style_shift(totals.values()), slice_axis)


def _check_item(
    item: Item, federation: Federation, site_totals: SiteTotals, by_content: dict[bytes, list[Item]]
) -> list[Problem]:
    """Read one image and its label; both are tried even if one fails."""
    problems, voxels = [], None
    root, task = federation.root, federation.task
    try:
        image = read_image(item, task)
        voxels = image.array
        site_totals.add(image.array, image.spacing)
        if image.array.min() == image.array.max():
            sentence = "the image holds one value everywhere; look whether it was exported well."
            problems.append(Problem("warning", item.site, relative(item.images[0], root), sentence))
        else:
            shape = str(image.array.shape).encode()
            by_content[hashlib.blake2b(shape + np.ascontiguousarray(image.array).tobytes()).digest()].append(item)
    except PolyclinicError as error:
        problems.append(problem_of(error, root, item.site))
    if item.label is None:
        return problems
    try:
        label = read_label(item, task)
        site_totals.add_label(label, voxels)
        if not label.any():
            sentence = "the mask is empty; look whether the image really shows none of the classes."
            problems.append(Problem("warning", item.site, relative(item.label, root), sentence))
    except PolyclinicError as error:
        site_totals.damaged_labels += 1
        problem = problem_of(error, root, item.site)
        if problem not in problems and not _blames_image(problem, item, problems, root):
            problems.append(problem)
    return problems


def _blames_image(problem: Problem, item: Item, problems: list[Problem], root: Path) -> bool:
    """A label is compared with its image's header, so that a damaged image would be reported twice."""
    files = {relative(path, root) for path in item.images}
    return problem.file in files and any(other.file in files for other in problems)


def _duplicates(groups: Iterable[list[Item]], root: Path, use_splits: bool) -> list[Problem]:
    """Images with the same voxels: an error when one of them trains and another one judges."""
    problems = []
    for group in groups:
        for index, item in enumerate(group[1:], start=1):
            apart = [other for other in group[:index] if other.split and item.split and other.split != item.split]
            cut = apart[0] if apart and use_splits else None
            where = f"in {cut.split} and in {item.split}" if cut else "and counts twice"
            sentence = (
                f"the same image as {relative((cut or group[0]).images[0], root)}, {where}; take one of them out."
            )
            problems.append(Problem("error" if cut else "warning", item.site, relative(item.images[0], root), sentence))
    return problems


def _split_problems(federation: Federation) -> list[Problem]:
    """Cases that lie in two splits, and images without a split at sites whose others have one."""
    problems = []
    for site, items in federation.sites.items():
        splits: dict[str, set[str]] = defaultdict(set)
        for item in items:
            if item.split is not None:
                splits[item.case].add(item.split)
        for case, parts in splits.items():
            if len(parts) > 1:
                sentence = f"the case '{case}' is in {' and in '.join(sorted(parts))}; put all its images into one."
                problems.append(Problem("error", site, "manifest.csv", sentence))
        for item in items:
            if splits and item.split is None:
                sentence = 'has no split in manifest.csv, but others have; add it, or set data.split_from = "recipe".'
                problems.append(Problem("error", site, relative(item.images[0], federation.root), sentence))
    return problems


def _label_problems(federation: Federation, totals: dict[str, SiteTotals]) -> list[Problem]:
    """Sites without any label, and classes that none of a site's labels holds, as far as all of them can be read."""
    problems = []
    names = federation.task.classes
    anywhere: set[int] = set().union(*(site_totals.classes for site_totals in totals.values()))
    declared = set(range(1, len(names))) if len(names) < 256 else anywhere - {0}
    for site, items in federation.sites.items():
        if all(item.label is None for item in items):
            sentence = (
                "no image has a label, so that the site can only take part in methods that use unlabelled images."
            )
            problems.append(Problem("warning", site, site, sentence))
        elif (missing := sorted((declared & anywhere) - totals[site].classes)) and not totals[site].damaged_labels:
            listed = ", ".join(names[value] for value in missing)
            problems.append(Problem("warning", site, site, f"no label holds {listed}, though other sites' labels do."))
    if (missing := sorted(declared - anywhere)) and not any(
        site_totals.damaged_labels for site_totals in totals.values()
    ):
        listed = ", ".join(names[value] for value in missing)
        problems.append(
            Problem("warning", "", "", f"no label of any site holds {listed}; check the classes in federation.toml.")
        )
    return problems
