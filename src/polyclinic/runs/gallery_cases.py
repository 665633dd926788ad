"""Which test cases a gallery shows: the best, the median and the worst of each site by one method's values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isnan

from polyclinic.evaluation.aggregate import Row, mean
from polyclinic.evaluation.metric_registry import Better

_SLICE = re.compile(r"\[\d+\]$")
# A prediction is made anew, perhaps on another device: a voxel whose two best classes are equal may change sides.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class PickedCase:
    """A case and the image of it that is shown; ``value`` is that of the case, by which it has its ``rank``."""

    rank: str
    site: str
    case: str
    image: str
    part: str
    value: float


def item_name(image: str, by_slice: bool) -> str:
    """The name of an image's file: where slices are scored one by one, the column ``image`` is ``name[slice]``.

    >>> item_name("scan-3[17]", by_slice=True)
    'scan-3'
    """
    return _SLICE.sub("", image) if by_slice else image


def pick_cases(
    rows: Mapping[str, Sequence[Row]], metric: str, better: Better, by_slice: bool = False
) -> dict[str, list[PickedCase]]:
    """Three cases of each site, from rows by part; of two cases the best and the worst, of one the median.

    A case that several parts test (repeated splits) counts in the first of them. The value of a case is that of the
    tables: the mean over its images of the mean over classes. Of several images of the best case the best is shown, of
    the worst the worst, and of the median that whose value is nearest to the case's. Cases without a value are left
    out.
    """
    cases: dict[str, dict[str, tuple[str, dict[str, list[float]]]]] = {}
    for part, own in rows.items():
        for row in own:
            if row["metric"] == metric:
                seen = cases.setdefault(row["site"], {}).setdefault(row["case"], (part, {}))
                if seen[0] == part:
                    seen[1].setdefault(row["image"], []).append(row["value"])
    picked = {}
    for site, by_case in sorted(cases.items()):
        found = [_Case(case, part, _means(images, by_slice)) for case, (part, images) in by_case.items()]
        known = [case for case in found if not isnan(case.value)]
        sign = -1 if better == "higher" else 1
        picked[site] = _ranked(site, sorted(known, key=lambda one: (sign * one.value, one.name)), sign)
    return picked


@dataclass(frozen=True)
class _Case:
    """A case with the values of its images by the name of their files: of each image, or of each slice of it."""

    name: str
    part: str
    images: dict[str, list[float]]

    @property
    def value(self) -> float:
        return mean(value for values in self.images.values() for value in values)

    def shown(self, rank: str, sign: int) -> str:
        """The image that stands for the case."""
        means = {image: mean(values) for image, values in self.images.items()}
        known = {image: value for image, value in means.items() if not isnan(value)}
        sign = {"best": sign, "worst": -sign}.get(rank, 0)
        order = {image: sign * value if sign else abs(value - self.value) for image, value in known.items()}
        return min(order, key=lambda image: (order[image], image))


def _means(images: Mapping[str, list[float]], by_slice: bool) -> dict[str, list[float]]:
    by_item: dict[str, list[float]] = {}
    for image, values in images.items():
        by_item.setdefault(item_name(image, by_slice), []).append(mean(values))
    return by_item


def _ranked(site: str, cases: Sequence[_Case], sign: int) -> list[PickedCase]:
    """From the best to the worst."""
    last = len(cases) - 1
    ranks = {0: {0: "median"}, 1: {0: "best", 1: "worst"}}.get(last, {0: "best", last // 2: "median", last: "worst"})
    return [
        PickedCase(rank, site, one.name, one.shown(rank, sign), one.part, one.value)
        for place, rank in ranks.items()
        for one in cases[place : place + 1]
    ]


def rows_of_image(rows: Iterable[Row], picked: PickedCase, metric: str, by_slice: bool = False) -> list[Row]:
    """The values of the shown image in a test of the part; of several sites' models those of the most typical one."""
    own = [
        row
        for row in rows
        if row["metric"] == metric
        and (row["site"], row["case"]) == (picked.site, picked.case)
        and item_name(row["image"], by_slice) == picked.image
    ]
    by_model: dict[str, list[Row]] = {}
    for row in own:
        by_model.setdefault(row.get("model", ""), []).append(row)
    if not by_model:
        return []
    centre = mean(row["value"] for row in own)
    means = {model: mean(row["value"] for row in rows) for model, rows in by_model.items()}
    return by_model[min(means, key=lambda model: (isnan(means[model]), abs(means[model] - centre), model))]


def agree(tested: Sequence[Row], again: Sequence[Row]) -> bool:
    """Whether an image has the values again that it had in the test, class by class."""
    before, after = ({(row["image"], row["class"]): row["value"] for row in rows} for rows in (tested, again))
    return before.keys() == after.keys() and all(
        (isnan(value) and isnan(after[key])) or isclose(value, after[key], rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        for key, value in before.items()
    )
