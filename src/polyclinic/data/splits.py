"""Train, val and test: by case, never through a case, the same for the same seed."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import seed_for
from polyclinic.data.federation import Federation, Item
from polyclinic.data.manifest import SPLITS
from polyclinic.recipe import DataSettings


@dataclass(frozen=True)
class Split:
    """The part, ``train``, ``val`` or ``test``, of every image by ``(site, image name)``."""

    of: dict[tuple[str, str], str]

    def items(self, federation: Federation, site: str, part: str) -> tuple[Item, ...]:
        """The images of one part of a site."""
        return tuple(item for item in federation.sites[site] if self.of.get((site, item.name)) == part)

    def to_csv(self) -> str:
        """A table ``site,image,split``, sorted, the same text for the same split."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("site", "image", "split"))
        writer.writerows((site, image, part) for (site, image), part in sorted(self.of.items()))
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> Split:
        """Read what ``to_csv`` wrote."""
        of: dict[tuple[str, str], str] = {}
        for row in csv.DictReader(io.StringIO(text, newline="")):
            if not row.get("site") or not row.get("image") or row.get("split") not in SPLITS:
                raise PolyclinicError(
                    f"split table: cannot use the row {row}; expected site, image and one of train, val, test."
                )
            of[row["site"], row["image"]] = row["split"]
        return cls(of)

    @property
    def hash(self) -> str:
        """The sha256 of the table's text."""
        return hashlib.sha256(self.to_csv().encode()).hexdigest()


def assign_splits(federation: Federation, settings: DataSettings, seed: int) -> Split:
    """The manifest's split where it gives one, else a seeded one for each site.

    Cases without any label always train: val and test could not measure them.
    """
    of: dict[tuple[str, str], str] = {}
    for site, items in federation.sites.items():
        if settings.split_from == "auto" and any(item.split for item in items):
            parts = _from_manifest(federation, site, items)
        else:
            parts = _share_out(_shuffled(site, items, seed, "split"), settings.split)
        of |= {(site, item.name): parts.get(item.case, "train") for item in items}
    return Split(of)


def repeated_splits(federation: Federation, settings: DataSettings, seed: int, repeats: int) -> list[Split]:
    """Splits by the recipe's shares, drawn with ``seed``, ``seed + 1`` and so on, whatever a manifest says."""
    drawn = settings.model_copy(update={"split_from": "recipe"})
    return [assign_splits(federation, drawn, seed + number) for number in range(repeats)]


def k_fold_splits(federation: Federation, settings: DataSettings, seed: int, folds: int) -> list[Split]:
    """One split for each fold: a site's labelled cases are each tested once, val is a share of the rest."""
    train, val, _ = settings.split
    splits: list[dict[tuple[str, str], str]] = [{} for _ in range(folds)]
    for site, items in federation.sites.items():
        cases = _shuffled(site, items, seed, "folds")
        if cases and len(cases) < folds:
            raise PolyclinicError(
                f"protocol.folds: site '{site}' has {len(cases)} labelled cases, too few for {folds} folds; "
                "take fewer folds."
            )
        for fold, of in enumerate(splits):
            rest = [case for index, case in enumerate(cases) if index % folds != fold]
            parts = _share_out(rest, (train / (train + val), val / (train + val), 0.0))
            parts |= dict.fromkeys(cases[fold::folds], "test")
            of |= {(site, item.name): parts.get(item.case, "train") for item in items}
    return [Split(of) for of in splits]


def _from_manifest(federation: Federation, site: str, items: Iterable[Item]) -> dict[str, str]:
    parts: dict[str, str] = {}
    manifest = federation.root / "manifest.csv"
    for item in items:
        if item.split is None:
            raise PolyclinicError(
                f"{manifest}: gives no split to the image '{item.name}' of site '{site}', but to others; "
                'add it, or set data.split_from = "recipe".'
            )
        if parts.setdefault(item.case, item.split) != item.split:
            raise PolyclinicError(
                f"{manifest}: the case '{item.case}' of site '{site}' is in {parts[item.case]} and in {item.split}; "
                "put all its images into one."
            )
    return parts


def _shuffled(site: str, items: Iterable[Item], seed: int, purpose: str) -> list[str]:
    """The labelled cases of a site in a seeded order that depends on nothing but the case, the site and the seed."""
    cases = {item.case for item in items if item.label is not None}
    return sorted(cases, key=lambda case: (seed_for(seed, site, purpose, case), case))


def _share_out(cases: list[str], shares: tuple[float, float, float]) -> dict[str, str]:
    """Give the first cases to test, the next to val, the rest to train; of three cases, each share above 0 gets one."""
    least = 1 if len(cases) >= 3 else 0
    val, test = (max(least, round(share * len(cases))) if share > 0 else 0 for share in shares[1:])
    while val + test >= len(cases) > 0 and val + test > 0:  # something must be left to train on
        val, test = (val, test - 1) if test > val else (val - 1, test)
    names = ["test"] * test + ["val"] * val + ["train"] * (len(cases) - test - val)
    return dict(zip(cases, names, strict=True))
