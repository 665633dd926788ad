"""Prepare the images of several sites side by side, each into its place in the entries that hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from polyclinic.core.forked_jobs import Progress, run_jobs
from polyclinic.core.machine import available_cores
from polyclinic.core.wording import MB
from polyclinic.data.cache_entry import Target
from polyclinic.data.federation import Federation, Item
from polyclinic.data.prepared_cache import Say
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_layout import Grid, ImagesLayout, LabelsLayout, require_grid
from polyclinic.recipe import DataSettings

_SECONDS_PER_IMAGE, _SECONDS_PER_BYTE = 5e-4, 1e-8  # of preparing, roughly
_WORTH_A_PROCESS = 0.1  # seconds of work
_COPIES_WHILE_PREPARING = 6  # of an item's prepared images: as read, as floats, resampled, with neighbours
Layouts = Mapping[str, ImagesLayout | LabelsLayout]


@dataclass(frozen=True)
class Preparation:
    """What images are prepared with, how many processes do it side by side (all cores by default), whom to tell."""

    federation: Federation
    settings: DataSettings
    processes: int | None = None
    progress: Progress = lambda *_: None
    say: Say = lambda _: None


@dataclass(frozen=True)
class NamedSite:
    """A site's images, and the names of the entries that hold them and their labels, ``""`` where there are none."""

    items: tuple[Item, ...]
    images: str
    labels: str

    @property
    def entries(self) -> list[str]:
        """The names of its entries."""
        return [name for name in (self.images, self.labels) if name]


@dataclass(frozen=True)
class _Job:
    """An item to prepare, its number at its site, and the names of the entries that it goes to."""

    item: Item
    number: int
    grid: Grid
    entries: tuple[str, ...]


def entry_layouts(
    sites: Sequence[NamedSite], grids: Sequence[Sequence[Grid]], wanted: Collection[str], federation: Federation
) -> dict[str, ImagesLayout | LabelsLayout]:
    """The layout of each wanted entry by name."""
    task, layouts = federation.task, dict[str, ImagesLayout | LabelsLayout]()
    for site, own in zip(sites, grids, strict=True):
        if site.images in wanted:
            layouts[site.images] = ImagesLayout(own, task.channels)
        if site.labels in wanted:
            layouts[site.labels] = LabelsLayout(site.items, own, len(task.classes))
    return layouts


def prepare_into(
    targets: Mapping[str, Target],
    layouts: Layouts,
    sites: Sequence[NamedSite],
    grids: Sequence[Sequence[Grid]],
    preparation: Preparation,
) -> dict[str, Any]:
    """Prepare what belongs into the targets; gives the index of each entry by name."""
    federation, settings = preparation.federation, preparation.settings
    jobs = _jobs(sites, grids, targets)

    def work(number: int) -> dict[str, Any]:
        job = jobs[number]
        with_label = any(isinstance(layouts[name], LabelsLayout) for name in job.entries)
        item = job.item if with_label else replace(job.item, label=None)
        prepared = prepare(item, federation, settings)
        require_grid(item, job.grid, prepared)
        return {name: layouts[name].write(targets[name], job.number, prepared) for name in job.entries}

    with _one_thread():
        answers = run_jobs(work, len(jobs), _processes(jobs, preparation), preparation.progress)
    indices: dict[str, Any] = {name: {"items": []} for name in targets}
    for answer in answers:
        for name, about in answer.items():
            indices[name]["items"].append(about)
    return indices


def _jobs(sites: Sequence[NamedSite], grids: Sequence[Sequence[Grid]], wanted: Collection[str]) -> list[_Job]:
    """One job for each item that any wanted entry holds; an entry that two sites share is filled by the first."""
    jobs, filled = [], set[str]()
    for site, own in zip(sites, grids, strict=True):
        new = set(site.entries) & set(wanted) - filled
        for number, (item, grid) in enumerate(zip(site.items, own, strict=True)):
            entries = [site.images] if site.images in new else []
            if site.labels in new and item.label is not None:
                entries.append(site.labels)
            if entries:
                jobs.append(_Job(item, number, grid, tuple(entries)))
        filled |= new
    return jobs


def _processes(jobs: Sequence[_Job], preparation: Preparation) -> int:
    """As many as there are cores, but no more than the work is worth and than the memory limit allows for."""
    channels = preparation.federation.task.channels
    sizes = [job.grid.rows * job.grid.row_bytes(channels) for job in jobs]
    seconds = _SECONDS_PER_IMAGE * len(jobs) + _SECONDS_PER_BYTE * sum(sizes)
    worth = int(seconds / _WORTH_A_PROCESS)
    fitting = preparation.settings.memory_limit_mb * MB / (_COPIES_WHILE_PREPARING * max(sizes, default=0) + 1)
    wanted = preparation.processes or min(available_cores(), worth)
    return max(1, min(wanted, int(fitting)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over an image depend on the number of threads in their last bit, and what is prepared serves any number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
