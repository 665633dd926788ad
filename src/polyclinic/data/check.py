"""Read every file of a federation before a night of training does: what is there, and all that is wrong with it."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.data.federation import Federation, Item
from polyclinic.data.readers import read_image, read_label
from polyclinic.data.survey import Problem, problem_of, relative, survey
from polyclinic.errors import PolyclinicError
from polyclinic.recipe import DataSettings

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SiteRow:
    """What one site holds, over its readable files. Sizes and spacings are the smallest and largest along each axis."""

    site: str
    images: int
    cases: int
    labelled: int
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None
    spacings: tuple[tuple[float, ...], tuple[float, ...]] | None
    classes: tuple[str, ...]
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class Report:
    """The sites, one row each, and every problem that was found."""

    federation: Federation
    rows: tuple[SiteRow, ...]
    problems: tuple[Problem, ...]

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
            "task": {"classes": list(task.classes), "channels": task.channels, "spatial_dims": task.spatial_dims},
            "sites": [asdict(row) for row in self.rows],
            "problems": [problem.as_dict() for problem in self.problems],
        }


@dataclass
class _Tally:
    """Running sums over the images of a site."""

    sizes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    classes: set[int] = field(default_factory=set)
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, array: NDArray[np.float32], spacing: tuple[float, ...] | None) -> None:
        values = array.astype(np.float64)
        self.sizes.append(array.shape[1:])
        if spacing is not None:
            self.spacings.append(spacing)
        self.count += values.size
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))

    def row(self, site: str, items: tuple[Item, ...], classes: tuple[str, ...]) -> SiteRow:
        mean = self.total / self.count if self.count else None
        std = math.sqrt(max(self.squares / self.count - mean**2, 0.0)) if mean is not None else None
        lowest, highest = (self.minimum, self.maximum) if self.count else (None, None)
        labelled = sum(item.label is not None for item in items)
        return SiteRow(
            site, len(items), len({item.case for item in items}), labelled, _range(self.sizes), _range(self.spacings),
            tuple(classes[value] for value in sorted(self.classes)), mean, std, lowest, highest,
        )  # fmt: skip


def check_federation(
    source: str | Path, settings: DataSettings = DataSettings(), progress: Progress | None = None
) -> Report:
    """Read all images and labels and report every problem; ``progress`` is told ``(images done, images in all)``.

    Only a source that holds no site raises; all else is reported.
    """
    federation, problems = survey(source, settings)
    images = [item for items in federation.sites.values() for item in items]
    tallies = {site: _Tally() for site in federation.sites}
    same: dict[bytes, list[Item]] = defaultdict(list)
    for done, item in enumerate(images, start=1):
        problems += _check_item(item, federation, tallies[item.site], same)
        if progress is not None:
            progress(done, len(images))
    use_splits = settings.split_from == "auto"
    problems += _duplicates(same.values(), federation.root, use_splits)
    if use_splits:
        problems += _split_problems(federation)
    problems += _label_problems(federation, tallies)
    rows = tuple(tallies[site].row(site, items, federation.task.classes) for site, items in federation.sites.items())
    ordered = sorted(problems, key=lambda problem: (problem.severity, problem.site, problem.file))
    return Report(federation, rows, tuple(ordered))


def _check_item(item: Item, federation: Federation, tally: _Tally, same: dict[bytes, list[Item]]) -> list[Problem]:
    """Read one image and its label; both are tried even if one fails."""
    problems = []
    root, task = federation.root, federation.task
    try:
        image = read_image(item, task)
        tally.add(image.array, image.spacing)
        if image.array.min() == image.array.max():
            sentence = "the image holds one value everywhere; look whether it was exported well."
            problems.append(Problem("warning", item.site, relative(item.images[0], root), sentence))
        else:
            shape = str(image.array.shape).encode()
            same[hashlib.blake2b(shape + np.ascontiguousarray(image.array).tobytes()).digest()].append(item)
    except PolyclinicError as error:
        problems.append(problem_of(error, root, item.site))
    if item.label is None:
        return problems
    try:
        values = np.unique(read_label(item, task))
        tally.classes.update(int(value) for value in values)
        if not values.any():
            sentence = "the mask is empty; look whether the image really shows none of the classes."
            problems.append(Problem("warning", item.site, relative(item.label, root), sentence))
    except PolyclinicError as error:
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
    for first, *others in groups:
        for item in others:
            cut = use_splits and len({first.split, item.split}) == 2 and None not in (first.split, item.split)
            where = f"in {first.split} and in {item.split}" if cut else "and counts twice"
            sentence = f"the same image as {relative(first.images[0], root)}, {where}; take one of them out."
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


def _label_problems(federation: Federation, tallies: dict[str, _Tally]) -> list[Problem]:
    """Sites without any label, and declared classes that no label of a labelled site holds."""
    problems = []
    names = federation.task.classes
    anywhere: set[int] = set().union(*(tally.classes for tally in tallies.values()))
    declared = set(range(1, len(names))) if len(names) < 256 else anywhere - {0}
    for site, items in federation.sites.items():
        if all(item.label is None for item in items):
            sentence = "no image has a label, so that the site can only take part in methods that use unlabelled images."
            problems.append(Problem("warning", site, site, sentence))
        elif missing := sorted((declared & anywhere) - tallies[site].classes):
            listed = ", ".join(names[value] for value in missing)
            problems.append(Problem("warning", site, site, f"no label holds {listed}, though other sites' labels do."))
    if missing := sorted(declared - anywhere):
        listed = ", ".join(names[value] for value in missing)
        problems.append(Problem("warning", "", "", f"no label of any site holds {listed}; check the classes in federation.toml."))
    return problems


def _range(values: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Smallest and largest along each axis; None when there are none or they differ in rank."""
    if not values or len({len(value) for value in values}) > 1:
        return None
    return tuple(map(min, zip(*values, strict=True))), tuple(map(max, zip(*values, strict=True)))
