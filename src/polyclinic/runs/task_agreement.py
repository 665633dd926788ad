"""The task that sites elsewhere agree on: what each of them describes, and which description holds for the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.version import installed_versions
from polyclinic.core.wording import printable_line
from polyclinic.data.federation import Task
from polyclinic.exchange.checks import description_problem, fits_table
from polyclinic.exchange.messages import Description, Failure
from polyclinic.federation.observer import Observer
from polyclinic.federation.recovery import NoQuorumError

_TASK = TypeAdapter(Task)
# A network of any task is built before an image is seen: more channels than any scanner, slice or stain gives would
# fill the memory. Labels are bytes, and work_limits.py has the same bound on neighbours.
_MOST_CHANNELS, _MOST_CLASSES, _MOST_NEIGHBOURS = 4096, 256, 100
_COMPARED_PACKAGES = ("polyclinic", "torch", "monai", "flwr")
SlicedTask = tuple[Task, bool]
"""A task, and whether volumes are cut into slices."""


@dataclass
class SiteAnswers:
    """What the sites that take part say of themselves, by site."""

    tasks: dict[str, SlicedTask] = field(default_factory=dict)
    knows_spacing: dict[str, bool] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    images: dict[str, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


def collect_answers(descriptions: Iterable[Description | Failure], observer: Observer) -> SiteAnswers:
    """The readable answers; a site that refuses or cannot be understood is told to the observer and left out."""
    answers = SiteAnswers()
    for description in descriptions:
        site = description.site
        if isinstance(description, Failure):
            observer.on_refusal(
                -1, site, printable_line(f"will not take part: {description.reason}"), description.details
            )
            continue
        if description.refusal:
            observer.on_refusal(-1, site, printable_line(f"will not take part: {description.refusal}"), "")
            continue
        problem = description_problem(description)
        if problem is not None:
            observer.on_refusal(-1, site, f"cannot take part: {problem}", "")
            continue
        try:
            answers.tasks[site] = task_from(description.task)
        except PolyclinicError as error:
            observer.on_refusal(-1, site, printable_line(str(error)), "")
            continue
        answers.knows_spacing[site], answers.images[site] = description.knows_spacing, description.images
        answers.splits[site], answers.versions[site] = description.split_sha256, description.versions
        counts = ", ".join(f"{count} {name}" for name, count in description.images.items())
        version = description.versions.get("polyclinic", "?")
        observer.on_message(printable_line(f"{site}: {counts}, polyclinic {version}"))
        _compare_versions(site, description.versions, observer)
    return answers


def agree_on_task(
    answers: SiteAnswers, binding: SlicedTask | None, quorum: int, observer: Observer
) -> tuple[SlicedTask, bool]:
    """The task of the run, and whether all sites that share it know the spacing of their images.

    ``binding`` is the task of a run that has finished a round and goes on. A site with another task is named; the run
    goes on without it while ``quorum`` sites are left.
    """
    if not answers.tasks and binding is None:
        raise NoQuorumError("No site takes part (see the reasons above); mend that and go on with --resume.")
    agreed = binding or _most_described(answers.tasks)
    deviating = {site: task for site, task in answers.tasks.items() if task != agreed}
    differences = {site: _difference(agreed[0], task) for site, (task, _) in deviating.items()}
    for site, difference in differences.items():
        observer.on_refusal(-1, site, f"has another task than the others ({difference})", "")
    if differences and len(answers.tasks) - len(differences) < quorum:
        site, difference = next(iter(differences.items()))
        raise PolyclinicError(
            f"Site '{site}' has another task than the others ({difference}), and without it there is "
            "no quorum; let all sites use one federation.toml."
        )
    return agreed, all(knows for site, knows in answers.knows_spacing.items() if site not in deviating)


def _most_described(tasks: Mapping[str, SlicedTask]) -> SlicedTask:
    """What most sites say; of equals none, because whoever then decided would be one site alone."""
    described = [tasks[site] for site in sorted(tasks)]
    most = max(map(described.count, described))
    leading = [
        task
        for number, task in enumerate(described)
        if described.count(task) == most and task not in described[:number]
    ]
    if len(leading) == 1:
        return leading[0]
    said = [
        f"{', '.join(site for site in sorted(tasks) if tasks[site] == task)}: {_words(task, leading)}"
        for task in leading
    ]
    raise PolyclinicError(
        f"The sites describe different tasks, and no task is that of most ({'; '.join(said)}); let all sites use one "
        "federation.toml, or name those that are right in data.sites."
    )


def _words(task: SlicedTask, leading: list[SlicedTask]) -> str:
    """Of a task what not all say."""
    tables = [task_table(*other) for other in leading]
    table = {**asdict(task[0]), "volumes_as_slices": task[1]}
    different = [key for key in table if any(other.get(key) != tables[0].get(key) for other in tables)]
    return printable_line(", ".join(f"{key} = {table[key]}" for key in different))


def _compare_versions(site: str, theirs: Mapping[str, str], observer: Observer) -> None:
    """Other versions may give other weights; a run goes on, but whoever compares numbers must know."""
    ours = installed_versions()
    different = [
        f"{name} {theirs.get(name, '?')} (here {ours[name]})"
        for name in _COMPARED_PACKAGES
        if theirs.get(name) != ours[name]
    ]
    if different:
        observer.on_message(printable_line(f"warning: {site} has other versions: {', '.join(different)}"))


def task_table(task: Task, volumes_as_slices: bool) -> dict[str, Any]:
    """A task as ``task.json`` holds it."""
    table = {**asdict(task), "volumes_as_slices": volumes_as_slices}
    if not table["regions"]:
        del table["regions"]  # runs that began before there were regions can go on
    if not table["zero_fill"]:
        del table["zero_fill"]  # the same
    return table


def task_from(table: Mapping[str, Any]) -> SlicedTask:
    """A task as a site describes it, or as ``task.json`` holds it, and whether volumes are cut into slices."""
    plain = dict(table)
    sliced = bool(plain.pop("volumes_as_slices", False))
    unknown = sorted(plain.keys() - Task.__dataclass_fields__.keys())
    try:
        task = _TASK.validate_json(json.dumps(plain), strict=True)
    except RecursionError:
        unknown, task = ["all of it"], None
    except ValidationError as error:
        first = error.errors()[0]
        unknown, task = [".".join(map(str, first["loc"])) or "all of it"], None
    if unknown or task is None:
        raise PolyclinicError(f"The site describes its task in a way that cannot be read ({unknown[0]}).")
    usable = 2 <= len(task.classes) <= _MOST_CLASSES and 1 <= task.channels <= _MOST_CHANNELS
    if not usable or task.spatial_dims not in (2, 3) or not 0 <= task.neighbours <= _MOST_NEIGHBOURS:
        raise PolyclinicError(
            f"The site describes a task of {len(task.classes)} classes, {task.channels} channels ({task.neighbours} "
            f"neighbours) and {task.spatial_dims} dimensions, which no network can learn."
        )
    if not all(map(fits_table, (task.modality, *task.classes, *dict(task.regions)))):
        raise PolyclinicError("The site describes a task with a name that no table can hold.")
    return task, sliced


def _difference(expected: Task, described: Task) -> str:
    for key, value in asdict(expected).items():
        if value != getattr(described, key):
            return printable_line(f"{key} = {getattr(described, key)}, expected {value}")
    return "volumes are cut into slices at one of them only"
