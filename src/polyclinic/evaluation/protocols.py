"""Protocols: who trains, who tests, on which split."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.data.federation import Federation
from polyclinic.data.splits import Split, assign_splits, k_fold_splits
from polyclinic.errors import PolyclinicError
from polyclinic.recipe import Recipe


@dataclass(frozen=True)
class ProtocolPart:
    """One training with its test. ``unseen`` is a site that only tests, with all of its images."""

    name: str
    split: Split
    train_sites: tuple[str, ...]
    unseen: str | None = None


def protocol_parts(federation: Federation, recipe: Recipe) -> list[ProtocolPart]:
    """The trainings that a recipe's protocol asks for."""
    sites, settings = tuple(federation.sites), recipe.protocol
    if settings.kind == "k-fold":
        splits = k_fold_splits(federation, recipe.data, recipe.seed, settings.folds)
        return [ProtocolPart(f"fold-{number + 1}", split, sites) for number, split in enumerate(splits)]
    split = assign_splits(federation, recipe.data, recipe.seed)
    if settings.kind == "own-test":
        return [ProtocolPart("all", split, sites)]
    if len(sites) < 2:
        raise PolyclinicError(
            f"protocol.kind = 'leave-one-site-out' needs two sites or more, {federation.name} has {len(sites)}; "
            "use 'own-test' or 'k-fold'."
        )
    return [
        ProtocolPart(f"without-{unseen}", _all_tested(split, unseen), tuple(s for s in sites if s != unseen), unseen)
        for unseen in sites
    ]


def _all_tested(split: Split, unseen: str) -> Split:
    """The split of a part that a site only tests in, with all of its images."""
    return Split({(site, image): "test" if site == unseen else part for (site, image), part in split.of.items()})


def split_files(parts: list[ProtocolPart]) -> dict[str, str]:
    """The splits as files of a run folder: one if all parts share it, else one a part."""
    if len({part.split.hash for part in parts}) == 1:
        return {"split.csv": parts[0].split.to_csv()}
    return {f"split-{part.name}.csv": part.split.to_csv() for part in parts}
