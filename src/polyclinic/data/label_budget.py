"""A budget of labels: which training images keep theirs. The others' labels are never read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyclinic.core.seeds import seed_for
from polyclinic.data.federation import Federation, Item
from polyclinic.data.splits import Split
from polyclinic.data.voxel_grid import geometry_of
from polyclinic.recipe import DataSettings

Slices = tuple[int, ...] | None


@dataclass(frozen=True)
class Labels:
    """Training images whose labels may be read, by ``(site, image name)``: ``None`` for all slices, or some of them."""

    of: dict[tuple[str, str], Slices]
    seed: int | None = None
    """The draw's own seed, where it is not the recipe's."""

    def visible(self, items: Sequence[Item], split: Split) -> tuple[Item, ...]:
        """The images without the labels that must not be read; those of val and test are left as they are."""
        return tuple(self._visible(item) if split.of[item.site, item.name] == "train" else item for item in items)

    def _visible(self, item: Item) -> Item:
        key = item.site, item.name
        return replace(item, labelled_slices=self.of[key]) if key in self.of else replace(item, label=None)

    def to_csv(self) -> str:
        """A table ``site,image,slices`` of the labels that are read, sorted; slices are empty where all are.

        A draw with a seed of its own has it in a fourth column.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        seed = () if self.seed is None else (self.seed,)
        writer.writerow(("site", "image", "slices", *(["label_seed"] if seed else [])))
        for (site, image), slices in sorted(self.of.items(), key=lambda entry: entry[0]):
            writer.writerow((site, image, " ".join(map(str, slices or ())), *seed))
        return text.getvalue()


def choose_labels(federation: Federation, split: Split, settings: DataSettings, seed: int) -> Labels | None:
    """Spend ``data.labelled`` at every site, case by case in a seeded order; ``None`` if there is no budget.

    ``seed`` is the recipe's; ``data.label_seed`` takes its place, so that draws and trainings can vary by themselves.

    Whole cases are taken until the budget is reached; of the last one as many images or slices as are left, at random.
    The choice at a site depends on the site's own cases, the budget and the seed alone, so that a larger budget holds
    every case of a smaller one.
    """
    if settings.labelled is None:
        return None
    chosen: dict[tuple[str, str], Slices] = {}
    seed = seed if settings.label_seed is None else settings.label_seed
    for site in federation.sites:
        items = [item for item in split.items(federation, site, "train") if item.label is not None]
        chosen |= {(site, item.name): slices for item, slices in _spend(items, federation, settings, seed)}
    return Labels(chosen, settings.label_seed)


def _spend(
    items: Sequence[Item], federation: Federation, settings: DataSettings, seed: int
) -> Iterator[tuple[Item, Slices]]:
    """Images of one site with the slices whose labels are read."""
    counts = {item.name: _samples(item, federation, settings) for item in items}
    wanted = settings.labelled or 0
    left = wanted if isinstance(wanted, int) else max(1, round(wanted * sum(counts.values())))
    by_case: dict[str, list[Item]] = {}
    for item in items:
        by_case.setdefault(item.case, []).append(item)
    for case in sorted(by_case, key=lambda case: (seed_for(seed, items[0].site, "labelled", case), case)):
        images = by_case[case]
        total = sum(counts[item.name] for item in images)
        if total <= left:
            yield from ((item, None) for item in images)
        elif left > 0:
            yield from _part(images, counts, left, seed)
        left -= min(left, total)


def _part(items: Sequence[Item], counts: dict[str, int], wanted: int, seed: int) -> Iterator[tuple[Item, Slices]]:
    """Some of the images or slices of a case, at random."""
    samples = [(item, number) for item in items for number in range(counts[item.name])]
    samples.sort(key=lambda sample: seed_for(seed, sample[0].site, "labelled", sample[0].name, sample[1]))
    taken = samples[:wanted]
    for item in items:
        numbers = tuple(sorted(number for other, number in taken if other is item))
        if numbers:
            yield item, (None if len(numbers) == counts[item.name] else numbers)


def _samples(item: Item, federation: Federation, settings: DataSettings) -> int:
    """Training samples that an image gives: its slices in a 2D task on volumes."""
    return geometry_of(item, federation, settings).samples if federation.volumes_as_slices else 1
