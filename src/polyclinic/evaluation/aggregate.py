"""From the values of cases to the numbers of a table, and the file that keeps the values.

A row is one value of one metric for one foreground class of one image. NaN is a value that the policy for empty masks
leaves out; it never enters a mean. ``model`` names the site whose model it was, where sites have models of their own
and one is tested elsewhere; ``part`` the part of the protocol, where several test the same case.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text

Row = TypedDict(
    "Row",
    {
        "site": str, "case": str, "image": str, "class": str, "metric": str, "model": NotRequired[str],
        "part": NotRequired[str], "value": float,
    },
)  # fmt: skip
COLUMNS = ("site", "case", "image", "class", "metric", "model", "value")
_WITH_PARTS = (*COLUMNS, "part")


def summarise(rows: Iterable[Row]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """The values of each site by metric, and their average over sites.

    The value of a site for ``dice`` is a mean over its cases of the mean over a case's images of the mean over an
    image's classes, so that a case with many slices counts once. With more than one foreground class there is also an
    entry for each, such as ``dice/nucleus``. The average is the plain mean over sites, whatever their size. A mean of
    nothing but NaN is NaN.

    >>> row = {"site": "a", "case": "1", "image": "1", "class": "nucleus", "metric": "dice", "value": 0.5}
    >>> summarise([row, {**row, "site": "b", "value": 1.0}])
    ({'a': {'dice': 0.5}, 'b': {'dice': 1.0}}, {'dice': 0.75})
    """
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        by_site.setdefault(row["site"], []).append(row)
    sites = {site: {name: mean(values) for name, values in case_values(own).items()} for site, own in by_site.items()}
    names = dict.fromkeys(name for values in sites.values() for name in values)
    return sites, {name: mean(values[name] for values in sites.values() if name in values) for name in names}


def case_values(rows: Iterable[Row]) -> dict[str, list[float]]:
    """One value a case of each entry that ``summarise`` has for a site; ``rows`` are of one site."""
    return {name: list(values.values()) for name, values in named_case_values(rows).items()}


def named_case_values(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """The same by the name of the case: ``dice -> case -> value``."""
    by_metric: dict[str, dict[str, dict[str, list[tuple[str, float]]]]] = {}
    classes: dict[str, dict[str, None]] = {}
    for row in rows:
        cases = by_metric.setdefault(row["metric"], {})
        cases.setdefault(row["case"], {}).setdefault(row["image"], []).append((row["class"], row["value"]))
        classes.setdefault(row["metric"], {})[row["class"]] = None
    values: dict[str, dict[str, float]] = {}
    for metric, cases in by_metric.items():
        names = (None, *classes[metric]) if len(classes[metric]) > 1 else (None,)
        for name in names:
            key = metric if name is None else f"{metric}/{name}"
            values[key] = {case: _case_value(images, name) for case, images in cases.items()}
    return values


def are_numbered(rows: Iterable[Row]) -> bool:
    """Whether a site's cases have numbers for names, which a policy gives them (``federation/site_policy.py``)."""
    return all(
        re.fullmatch(r"(.+/)?case-\d+", row["case"]) and re.fullmatch(r"image-\d+", row["image"]) for row in rows
    )


def mean(values: Iterable[float]) -> float:
    """The mean of what is not NaN; NaN when nothing is left."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def for_json(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON knows neither NaN nor infinity: they become ``None``."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def rows_to_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write rows atomically; every value is read back as exactly the same number."""
    text, rows = io.StringIO(), list(rows)
    columns = _WITH_PARTS if any("part" in row for row in rows) else COLUMNS
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = {**row, "value": repr(float(row["value"]))}
        writer.writerow([cells.get(column, "") for column in columns])
    write_text(path, text.getvalue())


def rows_from_csv(path: Path) -> list[Row]:
    """Read rows back; a damaged file gets a sentence."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            records = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    if not records or tuple(records[0]) not in (COLUMNS, _WITH_PARTS):
        raise _damaged(path, f"the first row must be {','.join(COLUMNS)}")
    return [_row(path, line, record, len(records[0])) for line, record in enumerate(records[1:], start=2)]


def _row(path: Path, line: int, record: Sequence[str], width: int) -> Row:
    try:
        if len(record) != width:
            raise ValueError
        site, case, image, name, metric, model, value, *parts = record
        row: Row = {"site": site, "case": case, "image": image, "class": name, "metric": metric, "value": float(value)}
        if model:
            row["model"] = model
        if parts:
            (row["part"],) = parts
        return row
    except ValueError:
        raise _damaged(path, f"row {line} must be {width} fields, the seventh a number") from None


def _damaged(path: Path, what: str) -> PolyclinicError:
    return PolyclinicError(f"{path}: {what}; restore the file or evaluate the run again.")


def _case_value(images: Mapping[str, Sequence[tuple[str, float]]], only: str | None) -> float:
    """The mean over a case's images and their classes, or over its images for the class ``only``."""
    return mean(mean(value for name, value in values if only in (None, name)) for values in images.values())
