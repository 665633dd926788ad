"""Protocols: who trains, who tests, on which split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item
from polyclinic.data.label_budget import Labels, choose_labels
from polyclinic.data.splits import Split, assign_splits, k_fold_splits, repeated_splits
from polyclinic.recipe import Recipe

_WORDS = {"k-fold": "fold", "repeated-splits": "repeat"}  # what a part is called, of protocols that draw several splits


@dataclass(frozen=True)
class ProtocolPart:
    """One training with its test. ``unseen`` is a site that only tests, with all of its images.

    ``labels`` are those of training images that may be read; all if it is ``None``.
    """

    name: str
    split: Split
    train_sites: tuple[str, ...]
    unseen: str | None = None
    labels: Labels | None = None

    def items(self, federation: Federation, site: str) -> tuple[Item, ...]:
        """A site's images with the labels that this part may read."""
        items = tuple(federation.sites[site])
        return items if self.labels is None or site == self.unseen else self.labels.visible(items, self.split)


def whole_part(federation: Federation, recipe: Recipe, all_labels: bool = False) -> ProtocolPart:
    """Every site trains on its own split: the protocol own-test, and what a site knows of any other."""
    split = assign_splits(federation, recipe.data, recipe.seed)
    return ProtocolPart("all", split, tuple(federation.sites), labels=_labels(federation, recipe, split, all_labels))


def _labels(federation: Federation, recipe: Recipe, split: Split, all_labels: bool) -> Labels | None:
    return None if all_labels else choose_labels(federation, split, recipe.data, recipe.seed)


def _drawn_splits(federation: Federation, recipe: Recipe) -> dict[str, Split]:
    """The splits of a protocol that draws several, by the name of the part; of others none."""
    settings, seed = recipe.protocol, recipe.seed
    names = _drawn_names(recipe)
    if settings.kind == "k-fold":
        return dict(zip(names, k_fold_splits(federation, recipe.data, seed, settings.folds), strict=True))
    if settings.kind == "repeated-splits":
        return dict(zip(names, repeated_splits(federation, recipe.data, seed, settings.repeats), strict=True))
    return {}


def _drawn_names(recipe: Recipe) -> list[str]:
    word = _WORDS.get(recipe.protocol.kind)
    return [f"{word}-{number + 1}" for number in range(recipe.protocol.trainings)] if word else []


def protocol_parts(federation: Federation, recipe: Recipe, all_labels: bool = False) -> list[ProtocolPart]:
    """The trainings that a recipe's protocol asks for; ``all_labels`` ignores ``data.labelled``."""

    def labels(split: Split) -> Labels | None:
        return _labels(federation, recipe, split, all_labels)

    sites, settings = tuple(federation.sites), recipe.protocol
    drawn = _drawn_splits(federation, recipe)
    if drawn:
        return [ProtocolPart(name, split, sites, labels=labels(split)) for name, split in drawn.items()]
    if settings.kind == "own-test":
        return [whole_part(federation, recipe, all_labels)]
    if len(sites) < 2:
        raise PolyclinicError(
            f"protocol.kind = 'leave-one-site-out' needs two sites or more, {federation.name} has {len(sites)}; "
            "use 'own-test' or 'k-fold'."
        )
    split = assign_splits(federation, recipe.data, recipe.seed)
    few = labels(split)
    return [
        ProtocolPart(
            f"without-{unseen}", _all_tested(split, unseen), tuple(s for s in sites if s != unseen), unseen, few
        )
        for unseen in sites
    ]


def site_part(federation: Federation, recipe: Recipe, site: str, name: str, all_labels: bool = False) -> ProtocolPart:
    """A part of the protocol as one site knows it, from its own folder alone."""
    kind, expected = recipe.protocol.kind, "all"
    drawn = _drawn_splits(federation, recipe)
    if name in drawn:
        labels = _labels(federation, recipe, drawn[name], all_labels)
        return ProtocolPart(name, drawn[name], (site,), labels=labels)
    if drawn:
        expected = f"{_WORDS[kind]}-N"
    whole = whole_part(federation, recipe, all_labels)
    if kind == "leave-one-site-out":
        expected = "without-SITE"
        if name == f"without-{site}":
            return ProtocolPart(name, _all_tested(whole.split, site), (), site, whole.labels)
        if name.startswith("without-"):
            return ProtocolPart(name, whole.split, (site,), labels=whole.labels)
    if kind != "own-test" or name != expected:
        raise PolyclinicError(f"The protocol {kind} has no part '{name}', expected {expected}.")
    return whole


def part_names(recipe: Recipe, sites: Sequence[str]) -> dict[str, str | None]:
    """Names of the parts of a protocol and the site that each leaves out, for a server that sees no image."""
    kind = recipe.protocol.kind
    if kind == "own-test":
        return {"all": None}
    if drawn := _drawn_names(recipe):
        return dict.fromkeys(drawn)
    if len(sites) < 2:
        raise PolyclinicError("protocol.kind = 'leave-one-site-out' needs two sites or more; use 'own-test'.")
    return {f"without-{site}": site for site in sites}


def _all_tested(split: Split, unseen: str) -> Split:
    """The split of a part that a site only tests in, with all of its images."""
    return Split({(site, image): "test" if site == unseen else part for (site, image), part in split.of.items()})


def split_files(parts: list[ProtocolPart]) -> dict[str, str]:
    """The splits, and the labels of a budget, as files of a run folder: one if all parts share it, else one a part."""
    found = _files("split", {part.name: part.split.to_csv() for part in parts})
    return found | _files("labelled", {part.name: part.labels.to_csv() for part in parts if part.labels is not None})


def _files(name: str, texts: dict[str, str]) -> dict[str, str]:
    if len(set(texts.values())) == 1:
        return {f"{name}.csv": next(iter(texts.values()))}
    return {f"{name}-{part}.csv": text for part, text in texts.items()}
